"""CUDA graphs of whole decoding steps, without a card: what was captured is run again as it was captured.

A graph reads its inputs, its metadata and its buffers where they lay. So does this: a "graph" holds the very objects of
the capture, and each replay runs the model's Python on them. vLLM's Triton attention, a backend of GPUs, runs in the
interpreter.
"""

from __future__ import annotations

import itertools
import types
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

READS = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "unique", "masked_select")  # need a value at once


class Watch(TorchDispatchMode):
    """Note the operations of a forward, and where the tensors lie that come from outside.

    Attributes:
        seen: each operation, and the addresses of what it takes from outside.
        reads: operations that make the host wait for a value.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, tuple[int, ...]]] = []
        self.reads: list[str] = []
        self._own: list[Any] = []  # storages that the forward has made; kept, so that no address comes back
        self._addresses: set[int] = set()

    def __torch_dispatch__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note an operation, and those inside our operators."""
        from sira_cli.vllm import layers, streams

        name = str(function)
        taken = [each for each in tree_leaves((args, kwargs or {})) if isinstance(each, torch.Tensor) and each.numel()]
        places = (each.untyped_storage().data_ptr() for each in taken)
        self.seen.append((name, tuple(place for place in places if place not in self._addresses)))
        if any(read in name for read in READS):
            self.reads.append(name)
        inner = {"sira_two_streams": layers._two_streams, "sira_fork": streams._fork}
        ours = next((run for key, run in inner.items() if key in name), None)
        if ours is None:
            made = function(*args, **(kwargs or {}))
        else:
            with self:
                made = ours(*args)
        for each in tree_leaves(made):
            if isinstance(each, torch.Tensor):
                self._own.append(each)
                self._addresses.add(each.untyped_storage().data_ptr())
        return made


def prepare() -> None:
    """Let vLLM take its Triton attention on a CPU; before it is started."""
    from vllm.platforms import current_platform

    card = types.SimpleNamespace(multi_processor_count=4, major=9, minor=0, total_memory=2**34, warp_size=32)
    torch.cuda.get_device_capability = lambda *args: (9, 0)
    torch.cuda.get_device_properties = lambda *args: card
    backend = "vllm.v1.attention.backends.triton_attn.TritonAttentionBackend"
    type(current_platform).get_attn_backend_cls = classmethod(lambda *args, **named: backend)
    type(current_platform).graph_pool_handle = lambda self: 0


class Graph:
    """A forward as it was captured."""

    def __init__(self, forward: Any) -> None:
        from vllm.config import CUDAGraphMode

        self.run = lambda: forward(CUDAGraphMode.NONE)
        self.replays: list[Watch] = []
        self.run()  # vLLM makes the buffer of its output now

    def replay(self) -> None:
        """Run it again."""
        with Watch() as watch:
            self.run()
        self.replays.append(watch)


def capture(engine: Any, sizes: list[int]) -> Any:
    """Give a started engine graphs of decoding steps with these numbers of requests; return what keeps them."""
    from vllm.config import CUDAGraphMode
    from vllm.v1.kv_cache_interface import MambaSpec
    from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager, ModelCudaGraphManager

    runner = engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    compilation = runner.compilation_config
    compilation.cudagraph_capture_sizes = sizes
    compilation.max_cudagraph_capture_size = max(sizes)
    compilation.cudagraph_mode = CUDAGraphMode.FULL_DECODE_ONLY
    for group in itertools.chain(*runner.attn_groups, *runner.get_model().sira.groups):
        for builder in group.metadata_builders:
            if isinstance(group.kv_cache_spec, MambaSpec):  # these have buffers if there are graphs
                builder.__init__(builder.kv_cache_spec, group.layer_names, runner.vllm_config, runner.device)

    def begin(self: Any, create: Any, progress_bar_desc: str = "") -> None:
        for graph in self._capture_descs[CUDAGraphMode.FULL]:
            self.graphs[graph] = Graph(create(graph, warmup=False))
        self._graphs_captured = True

    CudaGraphManager.capture = begin
    manager = ModelCudaGraphManager(runner.vllm_config, runner.device, CUDAGraphMode.FULL_DECODE_ONLY, 1)
    runner.cudagraph_manager = manager
    with torch.inference_mode():
        manager.capture(
            runner.model,
            runner.model_state,
            runner.input_buffers,
            None,
            runner.block_tables,
            runner.attn_groups,
            runner.kv_cache_config,
        )
    return manager


def report(manager: Any) -> dict[str, Any]:
    """Return how often graphs were replayed, by size, what was read by the host, and operations whose input moved."""
    replays: dict[str, int] = {}
    reads: list[str] = []
    moved: list[str] = []
    for size, graph in manager.graphs.items():
        replays[str(size.num_tokens)] = len(graph.replays)
        for watch in graph.replays:
            reads += watch.reads
            steps = zip(graph.replays[0].seen, watch.seen, strict=True)
            moved += [before[0] for before, after in steps if before != after]
    return {"replays": replays, "reads": reads, "moved": moved}
