#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""hello.c in Python: learns w = 2 from y = 2 x, and says how far off all ranks are."""

import lockstep
import numpy as np


def main() -> None:
    w, gradient = np.zeros(1, np.float32), np.zeros(1, np.float32)
    with lockstep.Session() as session:
        line = session.register("line", [lockstep.Parameter("w", w, gradient)])
        session.start()
        x, largest = session.rank + 1, session.world_size
        for _ in range(50):
            with session.step() as step, step.call(line) as call:
                gradient[:] = (w * x - 2 * x) * x
                call.ready("w")
            w -= gradient / largest**2  # Now gradient is the mean over all workers.
        error = session.allreduce("error", np.abs(w - 2), "max")
        print(f"rank {session.rank} of {session.world_size}: w = {w[0]:.3f}, "
              f"largest error {error[0]:.3f}")


if __name__ == "__main__":
    main()
