"""What the leader's process makes of the stage file for HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from epe.cli.child import http_settings_of
from epe.config.load import build_stage
from epe.launch.spec import ChildSpec


@pytest.mark.parametrize(
    ("host", "with_keys", "warns"),
    [("127.0.0.1", False, False), ("0.0.0.0", False, True), ("::", False, True), ("0.0.0.0", True, False)],
)
def test_a_service_that_others_can_reach_without_a_key_says_so(
    tmp_path: Path, host: str, with_keys: bool, warns: bool
) -> None:
    (tmp_path / "model_index.json").write_text('{"_class_name": "ZImagePipeline"}')
    keys = tmp_path / "keys.yaml"
    keys.write_text("alice: {key: alice-has-this-key}")
    keys.chmod(0o600)
    service = {"keys_file": str(keys), "limits": {"at_once": 2}} if with_keys else {}
    args = {"model_path": str(tmp_path)}
    stage = build_stage(
        {"name": "x", "factory": "zimage", "gpu": [0], "factory_args": args, "service": service}
    )
    spec = ChildSpec(
        role="leader", world_size=1, stage_path="", host=host, port=1, store_host="127.0.0.1", store_port=2
    )
    with capture_logs() as lines:
        settings = http_settings_of(spec, stage)
    assert [line["event"] for line in lines] == ["service.was_left_open"] * warns
    assert list(settings.keys) == ["alice"] * with_keys
    assert settings.limits.at_once == (2 if with_keys else None)
