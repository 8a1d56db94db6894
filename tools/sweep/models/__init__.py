"""Every architecture of transformers that a small random configuration exists for, captured and
compared with eager.
"""
