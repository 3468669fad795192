"""Faults on purpose are refused unless the environment consents, and where they could never strike."""

from __future__ import annotations

import pytest

from epe.config.faults import CONSENT
from epe.errors import BadSetting

CONSENTS = {CONSENT: "1"}


def test_a_file_that_asks_for_faults_is_refused_without_consent(stage_with):
    with pytest.raises(BadSetting, match=rf"^faults: .*set {CONSENT}=1"):
        stage_with("faults", [{"kind": "raise"}])


def test_with_consent_they_are_armed(stage_with):
    stage = stage_with("faults", [{"kind": "nan", "stage": "decode", "rank": 2, "count": None}], env=CONSENTS)
    (fault,) = stage.faults
    assert (fault.kind, fault.stage, fault.rank, fault.count, fault.life) == ("nan", "decode", 2, None, 0)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"kind": "explode"}, r"faults\[0\].kind: 'explode' is not one of raise, nan, oom"),
        ({"kind": "raise", "rank": 4}, r"faults\[0\].rank: 4 is no rank of 4, which count from 0"),
        ({"kind": "raise", "stage": "decode", "step": 3}, r"faults\[0\].step: only denoise has steps"),
        ({"kind": "kill", "stage": "finish"}, r"faults\[0\].kind: .*only raise or slow strike, not kill"),
        ({"kind": "raise", "stage": "finish", "rank": 1}, r"faults\[0\].rank: .*knows no rank"),
        (
            {"kind": "raise", "stage": "draw"},
            r"faults\[0\].stage: 'draw' is not one of encode, denoise, decode",
        ),
        (
            {"kind": "raise", "probabilty": 0.5},
            r"faults\[0\].probabilty: this key is not known; .*did you mean probability\?",
        ),
        ({"kind": "raise", "probability": 0}, r"faults\[0\].probability"),
    ],
)
def test_a_fault_that_could_never_strike_is_refused(stage_with, fault, words):
    with pytest.raises(BadSetting, match=words):
        stage_with("faults", [fault], env=CONSENTS)
