"""
Pauses a topic: jobs are taken in but not started; what runs goes on.

    python -m examples.pause
"""

from __future__ import annotations

import pulse


def main() -> None:
    """Close the gate of one topic, submit, look, and open it again."""
    with pulse.Client() as client:
        client.pause(topic="files", reason="the disk is being exchanged")
        job_id = client.submit("checksum", {"path": __file__}, topic="files")
        print("gate:", client.dispatch_status())
        print("paused:", client.get(job_id).status)
        client.resume(topic="files")
        print("resumed:", client.wait(job_id, timeout_s=60).status)


if __name__ == "__main__":
    main()
