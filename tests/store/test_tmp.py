from __future__ import annotations
import pytest
pytestmark = pytest.mark.anyio
@pytest.mark.parametrize("n", range(20))
async def test_a(store, connection, n) -> None:
    """x"""
    assert await connection.fetchval("select count(*) from pulse.jobs")==0
    print(await store.reads.database())
    await store.submit([])
