from __future__ import annotations

import pytest

from epe.launch.gpus import count_gpus


@pytest.mark.parametrize(
    ("visible", "count"), [(None, 4), ("0,1", 2), ("", 0), ("-1", 0), ("0,1,2,3,4,5", 4)]
)
def test_gpus_are_counted_without_cuda(tmp_path, visible, count):
    for bus in range(4):
        (tmp_path / f"0000:0{bus}:00.0").mkdir()
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert count_gpus(env, driver=tmp_path) == count


def test_a_machine_without_the_driver_has_none(tmp_path):
    assert count_gpus({}, driver=tmp_path / "nothing") == 0
