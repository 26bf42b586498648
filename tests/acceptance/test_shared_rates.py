"""A source's rate holds over the gateways of two hosts, as processes."""

import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
import pytest

from boathook_demo.redis_server import RedisServer
from tests.acceptance.conftest import BoathookProcess
from tests.conftest import open_folder
from tests.redis_server import running_redis
from tests.support import until

BURST = 80
HOSTS, GATEWAYS = 2, 2
SETTINGS = """
    [sources.shop]
    provider = "stripe"
    secrets = ["whsec_0123456789abcdef0123456789abcdef"]
    rate = 0.001
    burst = %d
    [shared]
    redis = "%s"
"""


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    folder = open_folder()
    with running_redis(folder) as server:
        yield server
    shutil.rmtree(folder, ignore_errors=True)


def knows_all(host: BoathookProcess) -> bool:
    text = httpx.get(f"{host.base}/metrics", timeout=60).text
    return re.search(rf"^boathook_gateways(?:{{.*}})? {HOSTS * GATEWAYS}(?:\.0)?$", text, re.MULTILINE) is not None


def answers_to(host: BoathookProcess, requests: int) -> Counter[int]:
    """Return the statuses of requests on a connection each, which the host's gateways share."""

    def send(_number: int) -> int:
        answer = httpx.post(f"{host.base}/in/shop", content=b"{}", timeout=60)
        if answer.status_code == 429:
            assert int(answer.headers["retry-after"]) >= 1
        return answer.status_code

    with ThreadPoolExecutor(8) as threads:
        return Counter(threads.map(send, range(requests)))


def passed_on_two_hosts(boathook: Callable[..., BoathookProcess], url: str) -> int:
    """Return how many requests pass, of more than all gateways would let pass if each had the whole burst."""
    extra = SETTINGS % (BURST, url)
    made = [
        boathook(roles="gateway,console", extra=extra, wait=False, BOATHOOK_SERVER_GATEWAYS=str(GATEWAYS))
        for _ in range(HOSTS)
    ]
    for host in made:
        host.wait_ready()
    for host in made:
        until(partial(knows_all, host))
    with ThreadPoolExecutor(HOSTS) as threads:
        found = list(threads.map(lambda host: answers_to(host, 4 * BURST), made))
    assert {status for statuses in found for status in statuses} <= {400, 401, 429}
    return sum(number for statuses in found for status, number in statuses.items() if status != 429)


@pytest.mark.extended("starts several servers of its own")
def test_two_hosts_hold_the_rate_of_a_source(boathook: Callable[..., BoathookProcess]):
    assert BURST - HOSTS * GATEWAYS <= passed_on_two_hosts(boathook, "") <= 1.5 * BURST + 3 * HOSTS * GATEWAYS


@pytest.mark.extended("starts several servers of its own")
def test_two_hosts_hold_it_by_redis(boathook: Callable[..., BoathookProcess], redis_server: RedisServer):
    passed = passed_on_two_hosts(boathook, redis_server.url)
    assert BURST - HOSTS * GATEWAYS <= passed <= 1.5 * BURST + 3 * HOSTS * GATEWAYS
