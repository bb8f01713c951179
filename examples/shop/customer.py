"""
A customer: pays in advance, uploads a picture, orders prints of it, and waits until all is done.

    python customer.py http://127.0.0.1:8000
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable

import httpx2
from PIL import Image


def wait(is_done: Callable[[], bool]) -> None:
    """Ask again and again, for half a minute."""
    until_s = time.monotonic() + 30
    while not is_done():
        assert time.monotonic() < until_s
        time.sleep(0.1)


def main(url: str) -> None:
    """One visit to the shop."""
    picture = io.BytesIO()
    Image.new("RGB", (1600, 1200), "teal").save(picture, "PNG")
    with httpx2.Client(base_url=url) as shop:
        shop.post("/customers", json={"email": "ada@shop.example", "cents": 5000}).raise_for_status()
        uploaded = shop.post("/pictures", content=picture.getvalue()).raise_for_status().json()
        wanted = {"email": "ada@shop.example", "picture": uploaded["picture"], "prints": 3}
        order = shop.post("/orders", json=wanted).raise_for_status().json()
        print("ordered:", order)
        wait(lambda: shop.get(f"/orders/{order['order']}").json()["is_paid"])
        print("order", order["order"], "is paid")
        wait(lambda: all(shop.get(f"/jobs/{job}").json()["status"] == "COMPLETED" for job in uploaded["jobs"]))
        with Image.open(io.BytesIO(shop.get(f"/pictures/{uploaded['picture']}/200").content)) as made:
            print("its thumbnail:", made.format, made.size)


if __name__ == "__main__":
    main(sys.argv[1])
