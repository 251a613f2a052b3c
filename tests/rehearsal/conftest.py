"""The stand-in is there for every test of this folder, and gone afterwards."""

import pytest


@pytest.fixture(autouse=True)
def _present():
    from rehearsal import standin  # imports torch, which the parent's conftest.py must precede

    with standin.present():
        yield
