"""Runs inside vLLM's worker, in vLLM's own environment: takes new weights in without a restart (see sagelib/vllm_server.py)."""

from __future__ import annotations

from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding


class Refresh:
    """vLLM mixes this class into its worker (``--worker-extension-cls refresh.Refresh``)."""

    def refresh_weights(self, path: str) -> None:
        """The weights are those of the transformers directory ``path`` afterwards.

        On a CPU the output layer computes with a packed copy of its weights. Where it shares them with the embedding, vLLM's own
        reload leaves that copy as it was, without an error: it is packed again here.
        """
        self.model_runner.reload_weights(weights_path=path)
        for module in self.model_runner.get_model().modules():
            if isinstance(module, VocabParallelEmbedding) and module.weight.device.type == "cpu":
                dispatch_cpu_unquantized_gemm(module, remove_weight=False)
