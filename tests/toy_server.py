"""A text world of one file for the tests of `text_pool`: counts up to the number in its task's name."""
import os
import sys
import time

from sagelib.text_server import TextServer


class Counting:
    def __init__(self, goal):
        self.goal, self.count = goal, 0

    def step(self, action):
        if action == "die":
            os._exit(3)
        if action == "hang":
            time.sleep(60)
        if action == "noise":
            print("an engine that prints")
        if action == "fail":
            raise ValueError("a fault of the engine")
        self.count += action == "up"

    def look(self):
        return f"at {self.count}"

    def choices(self):
        return ["up"] if not self.done else []

    @property
    def done(self):
        return self.count >= self.goal

    @property
    def reward(self):
        return min(1.0, self.count / self.goal)


class ToyServer(TextServer):
    def begin(self, task_id, copies):
        if task_id == "deadly":
            os._exit(4)
        goal = int(task_id.partition("-")[2])
        visits = [Counting(goal) for _ in range(copies)]
        return {"task_id": task_id, "instruction": f"count to {goal}", "start": "at 0", "fingerprint": f"f{goal}"}, visits


if __name__ == "__main__":
    sys.stdout.write("")
    ToyServer().serve()
