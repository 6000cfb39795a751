"""The worker threads: turns by tenant, and nothing left behind."""

import asyncio
import threading

import pytest

from gateway.workers import Workers


def test_one_tenants_long_jobs_do_not_hold_up_another():
    async def scenario() -> list[str]:
        workers, release, done = Workers(2), threading.Event(), []

        async def job(tenant: str, function) -> None:
            await workers.run(tenant, function)
            done.append(tenant)

        greedy = [asyncio.create_task(job("greedy", lambda: release.wait(10))) for _ in range(5)]
        await asyncio.sleep(0)
        await asyncio.wait_for(job("modest", lambda: None), 5)
        release.set()
        await asyncio.gather(*greedy)
        workers.close()
        return done

    assert asyncio.run(scenario()) == ["modest"] + ["greedy"] * 5


def test_errors_pass_through_and_nothing_is_kept():
    async def scenario() -> Workers:
        workers = Workers(1)
        with pytest.raises(ZeroDivisionError):
            await workers.run("gold", lambda number: 1 // number, 0)
        assert await workers.run("gold", lambda number: 1 // number, 1) == 1
        waiting = asyncio.create_task(workers.run("gold", threading.Event().wait, 0.05))
        given_up = asyncio.create_task(workers.run("gold", lambda: None))
        await asyncio.sleep(0.01)
        given_up.cancel()
        await waiting
        workers.close()
        return workers

    workers = asyncio.run(scenario())
    assert not workers._turns._turns
    assert not workers._turns._users
