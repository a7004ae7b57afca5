"""Measures a step of split training by part: forward and backward of a site's part, of the server's, of a last part.

Appendix A.2 of UniCon's paper (Y. Sun and H. Ochiai, 2023) counts with these times. A step of conventional split
learning takes all six, one after the other. UniCon's site has its two parts side by side, the trunk and the answer
projection, so that its step takes the larger of each pair, if they run at once. Both are printed: the sum, which is
what one processor takes, and the time with both parts at once. No message is sent.

    python benchmarks/split_steps.py --trunks butd mcan-small --trunk-width 128 --rows 64
"""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, get_args

import torch
import torch.nn.functional as F

from medfedvqa.core import Site, create
from medfedvqa.core.trunk_options import TrunkName
from medfedvqa.data import Split, load_site
from medfedvqa.models import bundled_for, load_backbone
from medfedvqa.models.tuning import Values
from medfedvqa.papers.networks.split import tail_logits

COLUMNS = ("site forward", "server forward", "server backward", "site backward", "second forward", "second backward")
"""T_f^1, T_f^g, T_b^g, T_b^1 of the appendix, then T_f^2 and T_b^2: the answer projection, or the last part."""


def gradients_of(output: torch.Tensor, by: torch.Tensor, values: Mapping[str, torch.Tensor]) -> None:
    """Back-propagates to a part's values."""
    torch.autograd.grad(output, [value for value in values.values() if value.requires_grad], by, allow_unused=True)


def step(name: str, method: Any, site: Site, values: Values, server: Values) -> list[float]:
    """The processor seconds of each part of one step, in the order of `COLUMNS`."""
    seconds = []

    def timed(make: Callable[[], Any]) -> Any:
        began = time.process_time()
        made = make()
        seconds.append(time.process_time() - began)
        return made

    train = site.data.train.answered
    chosen = method.rows_of(site, len(train), 1, 1)
    batch, right = method.batch(site, train, chosen), train.answers[chosen]
    networks, words = method.networks(site), site.backbone.words(site.data.answers, 8)
    rows = timed(lambda: networks.rows(values, batch))
    cut = rows.detach().requires_grad_()
    output = timed(lambda: method.server.rows(server, cut, True))
    if name == "unicon":
        answers = timed(lambda: networks.answers(values, words, True)[right])
        keys = answers.detach().requires_grad_()
        same = right[:, None] == right
        loss = timed(lambda: method.config.contrast(output, method.server.answers(server, keys), same))
        seconds[1] += seconds.pop()
        by_rows, by_keys, *_ = timed(lambda: torch.autograd.grad(loss, [cut, keys, *server.values()]))
        last, by_last = answers, by_keys
    else:
        middle = output.detach().requires_grad_()
        last = timed(lambda: F.cross_entropy(tail_logits(values, middle), right))
        by_last = torch.ones(())
        by_output = timed(lambda: torch.autograd.grad(last, [middle, values["tail.weight"], values["tail.bias"]]))[0]
        by_rows, *_ = timed(lambda: torch.autograd.grad(output, [cut, *server.values()], by_output))
    timed(lambda: gradients_of(rows, by_rows, values))
    if name == "unicon":
        forward, server_forward, second, server_backward, backward = seconds
        timed(lambda: gradients_of(last, by_last, values))
        return [forward, server_forward, server_backward, backward, second, seconds[-1]]
    forward, server_forward, second, second_backward, server_backward, backward = seconds
    return [forward, server_forward, server_backward, backward, second, second_backward]


def measured(name: str, options: Mapping[str, Any], repeats: int) -> list[float]:
    """The medians over steps, after one that warms up, at the phantom set's chest."""
    backbone = load_backbone(bundled_for("phantom"))
    data = load_site("phantom", None, "chest", Split())
    site = Site("chest", data, backbone, "cpu", 0)
    listed = {"answers": data.answers} if name == "split_learning" else {}
    method: Any = create(name, {**options, **listed, "rounds": 1, "steps": 1, "aggregate": "none"})
    values = {key: value.requires_grad_() for key, value in method.setup(site)["values"].items()}
    server = dict(method.server_part(1).values)
    times = [step(name, method, site, values, server) for _ in range(1 + repeats)][1:]
    return [statistics.median(column) for column in zip(*times, strict=True)]


def at_once(parts: list[float]) -> float:
    """A step's seconds if a site's two parts run at once, as the appendix counts UniCon."""
    forward, server_forward, server_backward, backward, second, second_backward = parts
    return max(forward, second) + server_forward + server_backward + max(backward, second_backward)


def main() -> None:
    """Print a table in milliseconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trunks", nargs="*", choices=get_args(TrunkName), default=["butd", "mcan-small"])
    parser.add_argument("--trunk-width", type=int, default=128, help="0: each paper's")
    parser.add_argument("--rows", type=int, default=64, help="in a batch")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| method | trunk |", " | ".join([*COLUMNS, "one after the other", "both at once"]), "|")
    print("|---|---|" + "---:|" * (len(COLUMNS) + 2))
    for trunk in arguments.trunks:
        width = arguments.trunk_width or None
        options = {"trunk": trunk, "trunk_width": width, "tuning": "full", "batch_rows": arguments.rows}
        for name in ("unicon", "split_learning"):
            parts = measured(name, options, arguments.repeats)
            whole = at_once(parts) if name == "unicon" else sum(parts)
            cells = [f"{1000 * seconds:.1f}" for seconds in (*parts, sum(parts), whole)]
            print(f"| {name} | {trunk} |", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
