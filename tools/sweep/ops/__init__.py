"""Every operator of torch's operator tests (`op_db`), in many variants, compiled and compared with
eager.
"""
