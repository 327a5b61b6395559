"""Transcripts of one game directory under the engine as installed, or as `alfworld_engine` runs it (test_alfworld.py).

    alfworld_transcripts.py DIR plain|ours TASKS STEPS SEED     one JSON line per task: [[command, text, commands, won], ...]
Runs in .venvs/alfworld, each kind in a process of its own: what ours remembers it remembers for the whole process.
"""
import json
import random
import sys
from pathlib import Path


def plain_player(data, folder):
    """(intro state, step) of the package's own classes on a game file."""
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredInfos
    from textworld.envs import PddlEnv
    path = folder / "game.tw-pddl"
    path.write_text(json.dumps(data))
    env = AlfredInfos(AlfredDemangler(PddlEnv(textworld.EnvInfos(admissible_commands=True, won=True))))
    env.load(str(path))
    return env.reset(), lambda command: env.step(command)[0]


def main(directory, kind, tasks, steps, seed):
    from tempfile import TemporaryDirectory

    from sagelib.alfworld_engine import Engines, Game
    from sagelib.alfworld_problem import game_data
    houses = json.loads((directory / "houses.json").read_text())
    rows = [json.loads(line) for line in (directory / "tasks.jsonl").read_text().splitlines()]
    engines = Engines() if kind == "ours" else None
    for n, row in enumerate(rows[:: max(1, len(rows) // tasks)][:tasks]):
        data, rng = game_data(houses[row["family"]], row["game"]), random.Random(f"{seed} {n}")
        script = row["walkthrough"] if n % 2 else []
        with TemporaryDirectory() as folder:
            if engines is None:
                state, step = plain_player(data, Path(folder))
                now = [state.feedback, list(state.admissible_commands), bool(state.won)]
            else:
                play = engines.start(Game(data))
                now = [play.intro, list(play.commands), play.won]
            seen = [["", *now]]
            for i in range(steps):
                command = script[i] if i < len(script) else rng.choice([*now[1], "fly to the moon"])
                if engines is None:
                    state = step(command)
                    now = [state.feedback, list(state.admissible_commands), bool(state.won)]
                else:
                    play.step(command)
                    now = [play.text, list(play.commands), play.won]
                seen.append([command, *now])
            if engines is not None:
                engines.end(play)
        print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:6]))
