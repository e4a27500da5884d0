"""Store RAFT's end-point errors with our lookup and with the whole volume, on the CPU. Needs FULLFIELD_DATA.

python -m benchmarks.experiments.compare_lookups      writes benchmarks/results/raft_lookup_errors_cpu.json

Official weights trained on Sintel, 32 updates, float32, the shared pairs of Sintel. Briedis et al. (CVPR 2026,
section 5) compare the errors of their kernel, which rounds features to bfloat16, and of RAFT's code in this way.
"""

from __future__ import annotations

import json
import time

import torch
from torch import Tensor

from benchmarks.cases.networks.forms import PEER_FORMS
from benchmarks.cases.networks.peers import Flow, build_peer_flow, load_peer
from benchmarks.experiments import build_program_parser
from benchmarks.shared_pairs import data_folder, shared_pairs
from benchmarks.stored import RESULTS, state_conditions
from fullfield.io import read_flow, read_frame
from fullfield.io.files import write_atomically
from fullfield.metrics import epe
from fullfield.models.raft import RAFT
from fullfield.nn import CorrelationPyramid

RESULT = RESULTS / "raft_lookup_errors_cpu.json"
UPDATES = 32
SOURCES = ("src/fullfield/models/raft/model.py", "src/fullfield/ops/correlation/_cpu_*.py")


class RoundedRAFT(RAFT):
    """RAFT whose lookup takes features that are rounded to bfloat16, as on a GPU."""

    def build_pyramid(self, fmap1: Tensor, fmap2: Tensor) -> CorrelationPyramid:
        """Return the lookup of the rounded features; its results are float32."""
        return super().build_pyramid(fmap1.bfloat16(), fmap2.bfloat16())


def build_flows() -> dict[str, Flow]:
    """Return the networks by name; all have the same weights."""
    weights = data_folder() / "weights" / "raft-sintel.pth"
    flows: dict[str, Flow] = {}
    for name, network, backend in (
        ("volume", RAFT, "dense"),
        ("lookup", RAFT, "cpu"),
        ("lookup, bfloat16 features", RoundedRAFT, "cpu"),
    ):
        flows[name] = model = network(correlation=backend).eval()
        model.load_checkpoint(weights)
    peer = load_peer("raft")
    peer.load_state_dict(model.state_dict(), strict=False)
    return {"ptlflow, volume": build_peer_flow(peer.eval(), PEER_FORMS["dense"], (0, 0)), **flows}


def main() -> None:
    """Score all networks on every pair and store the errors after each pair."""
    build_program_parser(__doc__).parse_args()
    torch.set_num_threads(1)
    flows = build_flows()
    errors: dict[str, dict[str, float]] = {name: {} for name in flows}
    result = {
        "what": f"mean end-point error in px of RAFT with raft-sintel's weights, {UPDATES} updates, on the CPU",
        "command": "python -m benchmarks.experiments.compare_lookups",
        **state_conditions(*SOURCES),
        "errors": errors,
    }
    for pair, (*frames, truth) in shared_pairs(data_folder()).items():
        if not pair.startswith("sintel"):
            continue
        known = read_flow(truth)
        first, second = (read_frame(path)[None] for path in frames)
        for name, flow in flows.items():
            start = time.perf_counter()
            with torch.inference_mode():
                estimate = flow(first, second, UPDATES)[0]
            errors[name][pair] = float(epe(estimate, known.flow, known.valid))
            print(f"{pair}, {name}: {errors[name][pair]:.6f} px, {time.perf_counter() - start:.0f} s", flush=True)
        with write_atomically(RESULT) as path:
            path.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
