"""torch's option keys (`torch._inductor.list_options()`) and variables, as data: which option of
Flambeau's each is, or what replaces it.

    options={"triton.cudagraphs": True}     cuda_graphs="always"
    options={"epilogue_fusion": True}       nothing to set: it is always so
    options={"epilogue_fusion": False}      ValueError: it is always so
    options={"cpp.min_chunk_size": 64}      ValueError: what decides in its place

A key that is an option of Flambeau's under the same name is in none of these tables.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True)
class Mapped:
    """An option of Flambeau's, and its value for one of torch's; KeyError for one without."""

    option: str
    value: Callable[[Any], Any] = lambda value: value


def _first_compiler(value: Any) -> Any:
    return next(filter(None, value)) if isinstance(value, (tuple, list)) else value


MAPPED: dict[str, Mapped] = {
    "triton.cudagraphs": Mapped("cuda_graphs", {True: "always", False: "never"}.__getitem__),
    "cpp.threads": Mapped("threads", lambda value: 0 if value == -1 else value),
    "cpp.cxx": Mapped("cxx", _first_compiler),
    "cpp.simdlen": Mapped(
        "isa", {None: None, 512: "avx512", 256: "avx2", 1: "baseline", 0: "baseline"}.__getitem__
    ),
    "fx_graph_cache": Mapped("graph_cache"),
    "combo_kernels": Mapped("combine_kernels"),
    "allow_buffer_reuse": Mapped("reuse_memory"),
    "layout_optimization": Mapped("channels_last"),
    "split_reductions": Mapped("reduction_parts", {True: None, False: 1}.__getitem__),
    "emulate_precision_casts": Mapped("numerics", {True: "strict", False: "fast"}.__getitem__),
    "cpp_wrapper": Mapped("executor", {True: "c", False: "auto"}.__getitem__),
    "trace.enabled": Mapped("trace.enabled"),
    "trace.debug_dir": Mapped("trace.debug_dir"),
    "disable_progress": Mapped("disable_progress"),
}
"""The last three are settings of the environment: `options.resolve` sets them there."""

ALWAYS: dict[str, tuple[Any, str]] = {
    "epilogue_fusion": (True, "pointwise code that follows is fused where that is faster"),
    "prologue_fusion": (True, "pointwise code that computes operands is fused where measured"),
    "pattern_matcher": (True, "the passes are in flambeau_autograd and flambeau_inductor"),
    "joint_graph_constant_folding": (True, "constants are folded"),
    "constant_and_index_propagation": (True, "constants are folded"),
    "use_dce": (True, "dead code is removed"),
    "dce": (True, "dead code is removed"),
    "keep_output_stride": (True, "results have eager's strides"),
    "fallback_random": (True, "random numbers are eager's"),
    "implicit_fallbacks": (True, "an operator without a lowering is a call of ATen"),
    "inplace_buffers": (True, "kernels write over dead operands; reuse_memory=False ends that"),
    "trace.log_autotuning_results": (True, "what is measured is printed as a table"),
    "unbacked_symint_fallback": (8192, "it is the likely value where a size is in the data"),
    "disable_cpp_codegen": (False, 'backend="aot_eager" runs without kernels'),
    "fallback_by_default": (False, 'backend="aot_eager" runs without kernels'),
    "deterministic": (False, "torch.use_deterministic_algorithms(True) is honoured"),
    "use_fast_math": (False, "kernels keep IEEE semantics"),
    "cpp.enable_unsafe_math_opt_flag": (False, "kernels keep IEEE semantics"),
}
"""Keys for which there is nothing to choose: the only value, and why."""

_SCHEDULER = (
    "Flambeau's scheduler decides (FLAMBEAU_LOGS=schedule shows how; max_fusion_size bounds it)"
)
_PASSES = "write a backend of your own around it: docs/custom_backends.md"
_MEASURED = (
    "max_autotune measures; max_autotune_candidates and max_autotune_seconds bound it, and "
    "max_autotune_gemm_backends says who takes part"
)
_TILES = "tiles are chosen by the kernel's sizes, or measured with max_autotune_pointwise"
_CACHE = "FLAMBEAU_CACHE_DIR, and flambeau.compiler.save_cache_artifacts to carry the cache"
_CHECKS = "FLAMBEAU_CHECK=1 checks each stage and what kernels are given"
_FOLDER = "FLAMBEAU_DEBUG_DIR writes every stage to a folder"
_CPP = "the C++ is chosen for the machine: isa, cxx and cxx_flags say otherwise"
_COLLECTIVES = "collectives start in the program's order, and run beside other calls without asking"
_BUILDING = "kernels of a graph are built at the same time, by threads of this process"
_PADDING = "shape_padding pads products in half precision; nothing else is padded"
_GRAPHS = "cuda_graphs says whether programs are launched as CUDA graphs; results stay valid"
_TESTS = "it serves the tests of torch"

REFUSED: dict[str, str] = {
    _SCHEDULER: """
        aggressive_fusion batch_fusion group_fusion benchmark_fusion benchmark_epilogue_fusion
        max_epilogue_benchmarked_choices epilogue_fusion_first epilogue_fusion_with_atomic_add
        epilogue_fusion_user_defined_triton_kernel loop_ordering_after_fusion
        loop_reindexing_after_fusion loop_index_inversion_in_fusion score_fusion_memory_threshold
        min_overlap_ratio max_fusion_buffer_group_pairwise_attempts max_fusion_unique_io_buffers
        max_complex_pointwise_cat_inputs max_pointwise_cat_inputs force_pointwise_cat
        unroll_reductions_threshold pick_loop_orders realize_* _realize_*
        delay_realize_cheap_outputs
        reorder_for_locality reorder_for_peak_memory reorder_for_peak_memory_debug
        size_threshold_for_succ_based_strategy combo_kernel_* combo_kernels_*
        benchmark_combo_kernel expand_dimension_for_pointwise_nodes small_memory_access_threshold
        optimize_scatter_upon_const_tensor permute_fusion split_cat_fx_passes online_softmax
        min_num_split inplace_padding can_inplace_pad_graph_input memory_planning memory_pool
        b2b_gemm_pass decompose_mem_bound_mm conv_1x1_as_mm force_fuse_int_mm_with_mul
        keep_addmm_fused_for_half_dtypes use_mixed_mm mixed_mm_choice apply_gumbel_max_trick
        efficient_conv_bn_eval_fx_passes enable_linear_binary_folding selective_decompose
        partitioned_scatter_* auto_chunker.* force_layout_optimization layout_opt_default
        cache_sdpa_constraint warn_mix_layout compute_all_bounds batch_invariant
        static_weight_shapes small_memory_access_threshold fallback_embedding_bag_byte_unpack
        _use_fp64_for_unbacked_floats emulate_precision_casts_on_saved_tensors eager_numerics.*
        align_random_eager assume_32bit_indexing assume_aligned_inputs
        assume_unaligned_fallback_output""",
    _PASSES: """
        post_grad_custom_pre_pass post_grad_custom_post_pass custom_partitioner_fn
        joint_custom_pre_pass joint_custom_post_pass pre_grad_custom_pass _pre_fusion_custom_pass
        _post_fusion_custom_pass pre_grad_fusion_options post_grad_fusion_options
        add_pre_grad_passes remove_pre_grad_passes disabled_passes use_pre_grad_passes
        use_joint_graph_passes use_post_grad_passes pre_grad_pass_timing is_predispatch
        fx_passes_numeric_check inductor_choices_class external_matmul fx_wrapper
        enable_auto_functionalized_v2 custom_should_partition_ops run_jit_post_compile_hook
        triton_kernel_default_layout_constraint""",
    _MEASURED: """
        autotune_* autoheuristic_* benchmark_kernel benchmark_harness inductor_default_autotune_*
        max_autotune_* multi_kernel_hints nvgemm_* _conv_default_backends incremental_autotune
        search_autotune_cache coordinate_descent_* distributed_max_autotune_gemm
        pipeline_max_autotune_gemm use_experimental_benchmarker use_torch_profiler_benchmarker
        cutedsl_enable_autotuning lookup_table.* precompilation_timeout_seconds
        enable_caching_generated_triton_templates collective_benchmark_*
        triton_disable_device_detection""",
    _TILES: """
        triton.autotune_* triton.tile_reductions triton.max_tiles triton.prefer_nd_tiling
        triton.tiling_* triton.coalesce_tiling_analysis triton.dense_indexing triton.native_matmul
        triton.persistent_reductions triton.cooperative_reductions
        triton.force_cooperative_reductions triton.decompose_sort_ops triton.multi_kernel
        triton.min_split_scan_rblock triton.use_block_ptr triton.use_tensor_descriptor
        triton.transpose_discontiguous_tensor_descriptor triton.use_two_step_variance_*
        triton.mix_order_reduction* triton.nested_reduction triton.num_decompose_k_splits
        triton.decompose_k_threshold triton.enable_* triton.skip_l1_cache triton.spill_threshold
        triton.divisible_by_16 triton.emit_pointer_range_32 triton.codegen_upcast_to_fp32
        triton.dynamic_disable_pipelining dynamic_scale_rblock""",
    _CACHE: """
        fx_graph_remote_cache remote_gemm_autotune_cache bundle_triton_into_fx_graph_cache
        non_blocking_remote_cache_write bundled_autotune_remote_cache global_cache_dir
        unsafe_skip_cache_dynamic_shape_guards unsafe_marked_cacheable_functions
        file_lock_timeout""",
    _CHECKS: """
        size_asserts nan_asserts runtime_triton_nan_asserts scalar_asserts alignment_asserts
        assert_indirect_indexing do_not_emit_runtime_assertions debug_index_asserts
        triton.debug_* triton.max_kernel_dump_occurrences developer_warnings
        unsafe_ignore_unsupported_triton_autotune_args""",
    _FOLDER: """
        trace.* debug_fusion save_args comment_origin enabled_metric_tables
        generate_intermediate_hooks
        debug_ir_traceback log_tlparse verbose_progress kernel_name_max_ops
        triton.unique_kernel_names triton.unique_user_kernel_names triton.descriptive_names
        triton.store_cubin cpp.descriptive_names annotate_training""",
    "torch.profiler shows kernels by name; python -m tools.bench measures them": """
        profile_bandwidth* _profile_var profiler_mark_wrapper_call cpp.enable_kernel_profile
        triton.proton_* estimate_op_runtime runtime_estimations_mms_benchmark intra_node_bw
        inter_node_bw cpu_gpu_bw""",
    _CPP: "cpp.*",
    _COLLECTIVES: """
        reorder_for_compute_comm_overlap reorder_for_compute_comm_overlap_passes
        reorder_prefetch_limit bucket_* dedup_reduce_scatters _fuse_ddp_* _micro_pipeline_tp
        _collective.* aten_distributed_optimizations.*""",
    _BUILDING: """
        compile_threads quiesce_async_compile_* worker_* compile_worker_wait_timeout
        torchinductor_worker_logpath cpp_cache_precompile_headers cpp_wrapper_build_separate""",
    _PADDING: """
        comprehensive_padding pad_* disable_padding_cpu padding_* force_shape_pad
        bw_outputs_user_visible""",
    _GRAPHS: """
        triton.cudagraph_* triton.slow_path_cudagraph_asserts triton.fast_path_cudagraph_asserts
        triton.force_cudagraph_sync triton.force_cudagraphs_warmup triton.skip_cudagraph_warmup
        triton.reorder_for_reducing_graph_partitions graph_partition cudagraph_policy
        cudagraph_unsafe_unbacked_ops use_static_cuda_launcher
        static_launch_user_defined_triton_kernels strict_static_cuda_launcher keep_static_cubin_raw
        use_fast_triton_launcher use_launch_metadata_schema wrap_inductor_compiled_regions""",
    "freezing keeps the parameters: a write to one is seen": """
        freezing_discard_parameters always_keep_tensor_constants""",
    "flambeau_capture.export stores programs, and to_exported_program is AOTInductor's input": """
        aot_inductor.* aot_inductor_mode.* enable_autograd_for_aot""",
    "products are ATen's, Triton's or C++'s: max_autotune_gemm_backends": "cutlass.* cuda.*",
    "kernels are generated for CPUs and for NVIDIA's GPUs": """
        xpu.* rocm.* mtia.* halide.* cpu_backend cuda_backend tpu_backend xpu_backend""",
    _TESTS: """
        test_configs.* *_TESTING_ONLY _raise_error_for_testing is_nightly_or_source
        write_are_deterministic_algorithms_enabled TYPE_CHECKING _save_config_ignore
        _cache_config_*""",
}
"""What replaces keys that have no counterpart; `*` stands for any end. The first match counts."""

VARIABLES: dict[str, str] = {
    "TORCHINDUCTOR_FREEZING": "freezing",
    "TORCHINDUCTOR_MAX_AUTOTUNE": "max_autotune",
    "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM": "max_autotune_gemm",
    "TORCHINDUCTOR_MAX_AUTOTUNE_POINTWISE": "max_autotune_pointwise",
    "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS": "max_autotune_gemm_backends",
    "TORCHINDUCTOR_COORDINATE_DESCENT_TUNING": "coordinate_descent_tuning",
    "TORCHINDUCTOR_CUDAGRAPHS": "triton.cudagraphs",
    "TORCHINDUCTOR_CPP_WRAPPER": "cpp_wrapper",
    "TORCHINDUCTOR_EMULATE_PRECISION_CASTS": "emulate_precision_casts",
    "TORCHINDUCTOR_FX_GRAPH_CACHE": "fx_graph_cache",
    "TORCHINDUCTOR_LAYOUT_OPTIMIZATION": "layout_optimization",
    "TORCHINDUCTOR_SHAPE_PADDING": "shape_padding",
    "TORCHINDUCTOR_SPLIT_REDUCTIONS": "split_reductions",
}
"""torch's variables that are honoured, and the key that each sets."""


def translate(key: str, value: Any) -> tuple[str, Any] | None:
    """(option, value) of Flambeau's for a key of torch's; None where there is nothing to set.

    Raises KeyError for a key that torch does not have, ValueError, which names the replacement, for
    one without a counterpart.
    """
    if (mapped := MAPPED.get(key)) is not None:
        try:
            return mapped.option, mapped.value(value)
        except (KeyError, TypeError):
            raise ValueError(f"option {key!r} (torch's) has no meaning for {value!r}") from None
    if key in ALWAYS:
        only, why = ALWAYS[key]
        if value != only:
            raise ValueError(f"option {key!r} (torch's) can only be {only!r} here: {why}")
        return None
    if (replacement := replacement_of(key)) is not None:
        raise ValueError(f"option {key!r} (torch's) has no counterpart: {replacement}")
    raise KeyError(key)


def option_of_variable(name: str, text: str) -> tuple[str, Any] | None:
    """(option, value) of Flambeau's for one of torch's variables; KeyError if not honoured."""
    key = VARIABLES[name]
    value: Any = text
    if text.lower() in ("0", "1", "true", "false"):
        value = text.lower() in ("1", "true")
    return translate(key, value) if key in MAPPED else (key, value)


def replacement_of(key: str) -> str | None:
    """What replaces a key of torch's that has no counterpart; None for other keys."""
    matches = (why for why, pattern in _patterns() if fnmatch.fnmatchcase(key, pattern))
    return next(matches, None)


def _patterns() -> Iterator[tuple[str, str]]:
    return ((why, pattern) for why, names in REFUSED.items() for pattern in names.split())
