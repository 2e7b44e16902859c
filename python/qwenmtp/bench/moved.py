"""Bytes of one step: those that move through its graph, and those that no implementation could save."""

from __future__ import annotations

from qwenmtp.inventory import inventory
from qwenmtp.model import Model
from qwenmtp.sampling import SamplingParams
from qwenmtp.weights import open_model_files

DEFAULT_CONTEXT = 64


def token_ids(model: Model, n: int) -> list[int]:
    """n ids that do not repeat soon."""
    vocab = int(model.info()["geometry"]["vocab_size"])
    return [(7 * i * i + 13 * i) % vocab for i in range(n)]


class Steps:
    """Forwards behind a context.

    Args:
        model: An open model.
        n: Tokens of the context.
    """

    def __init__(self, model: Model, n: int = DEFAULT_CONTEXT):
        self._model, self._n = model, n
        self._session = model.session(mode="mtp" if model.has_mtp else "ar")
        for _ in self._session.generate(token_ids(model, n), SamplingParams(temperature=0), max_tokens=0):
            pass

    def moved(self, rows: int = 1, *, draft: bool = False) -> int:
        """Bytes in and out of all nodes of a forward of `rows` tokens, or of one draft."""
        nodes = self._session.traffic(token_ids(self._model, self._n + rows)[self._n :], draft=draft)
        return sum(n_bytes for _, n_bytes in nodes.values())

    def least(self) -> int:
        """Bytes of a one-row trunk forward: every weight a token needs, recurrent state read and written, attended keys
        and values, pooled keys, the new logits."""
        g, total = self._model.info()["geometry"], 0.0
        total += sum(c.per_token for c in inventory(open_model_files(self._model.path))["trunk"].values())
        attended = min(1.0, g["index_budget"] / self._n)
        share = {"keys": attended, "values": attended, "pooled": 1.0, "logits": 1.0}
        share |= {"gdn_conv": 2.0, "gdn_ssm": 2.0, "ple_conv": 2.0}
        for name, tensor in self._session.export().items():
            if not name.startswith("mtp."):
                total += share.get(name.rsplit(".", 1)[1], 0.0) * tensor.array.nbytes
        return round(total)
