import pytest

from guardwrap.engine.endpoint import request_faults


@pytest.fixture(autouse=True)
def _no_key_and_no_waiting(monkeypatch):
    """Ignore the machine's environment variables, and make the waits between retries short."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(request_faults, "_FIRST", 0.002)
