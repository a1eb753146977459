"""What every test shares: real graphs where they are at hand, one way to draw, skips without a GPU.

Hypothesis draws the same examples in every run, so that a failure is the change's own, and sets no
time limit on one example, since the first call of a kernel compiles it.
"""

from pathlib import Path

import hypothesis
import pytest

hypothesis.settings.register_profile("gnnx", derandomize=True, deadline=None)
hypothesis.settings.load_profile("gnnx")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real graphs beside the checkout."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("real graphs are not at hand: there is no ../shared/data beside the checkout")
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    needed = {"gpu": 1, "multigpu": 2}
    marked = [(item, name) for item in items for name in needed if item.get_closest_marker(name)]
    if not marked:
        return
    import torch  # only now: most runs do without

    num_devices = torch.cuda.device_count()
    for item, name in marked:
        if num_devices < needed[name]:
            reason = f"needs {needed[name]} CUDA device(s), found {num_devices}"
            item.add_marker(pytest.mark.skip(reason=reason))
