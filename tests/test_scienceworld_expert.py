"""ScienceWorld's rule players and short views, on texts as the engine says them; no engine is needed."""
import re

import pytest

from sagelib.rise_worlds import Style
from sagelib.scienceworld_exercises import copying_pairs
from sagelib.scienceworld_expert import (
    GENERAL,
    Conductivity,
    Friction,
    next_action,
    read_document,
    read_goal,
    reply_to,
    revised_document,
)

PLANES = ("Your task is to determine which of the two inclined planes (soapy water, tin) has the least friction. After "
          "completing your experiment, focus on the inclined plane with the least friction.")
BOOK = ("Your task is to determine if book (On Species) is electrically conductive. The book (On Species) is located around the "
        "living room. First, focus on the book (On Species). If it is electrically conductive, place it in the yellow box. If "
        "it is electrically nonconductive, place it in the purple box.")
FOIL = BOOK.replace("book (On Species)", "aluminum foil").replace("living room", "workshop")
ROOM = ("workshop: aluminum foil; green box; table: battery, black wire, blue wire, green light bulb, orange wire, switch; "
        "ultra low temperature freezer")
HASTY = Style(careful=False)


def test_goals_are_read():
    assert read_goal(PLANES) == Friction(("soapy water", "tin"), "least")
    assert read_goal(BOOK) == Conductivity("book (On Species)", "living room", ("yellow box", "purple box"))
    with pytest.raises(ValueError, match="no rule player knows this task: 'Your task is to boil water.'"):
        read_goal("Your task is to boil water.")


def test_the_document_decides_the_answer():
    known = "Known here:\n- least friction: soapy water\n- most friction: tin"
    assert next_action(PLANES, known, [], []) == "teleport to workshop"
    assert next_action(PLANES, known, ["teleport to workshop"], ["..."]) == "focus on inclined plane with a soapy water surface"
    assert next_action(PLANES.replace("least", "most"), known, ["a"], ["b"]).endswith("a tin surface")
    for fact, box in (("conductive", "yellow box"), ("nonconductive", "purple box")):
        actions = ["teleport to living room", "focus on book", "pick up book", "teleport to workshop"]
        document = f"Known here:\n- book (On Species): {fact}"
        assert [next_action(BOOK, document, actions[:n], actions[:n]) for n in range(4)] == actions
        assert next_action(BOOK, document, actions, actions) == f"move book to {box}"


def test_a_document_of_another_family_or_an_unread_one_is_a_guess():
    other = "Known here:\n- most friction: brass\n- least friction: lead"
    guess = next_action(PLANES, "", ["a"], ["b"], HASTY)
    assert next_action(PLANES, other, ["a"], ["b"]) == guess
    right = f"Known here:\n- least friction: {'tin' if 'soapy' in guess else 'soapy water'}"
    assert next_action(PLANES, right, ["a"], ["b"]) != guess
    assert next_action(PLANES, right, ["a"], ["b"], Style(document=False)) == guess


def test_the_experiment_is_a_ring_of_battery_wires_light_and_thing():
    actions, shown = [], []
    while len(actions) < 20 and not (actions and actions[-1].startswith("move")):
        actions.append(next_action(FOIL, "", actions, shown))
        shown.append(ROOM.replace("green light bulb", "green light bulb (on)") if len(actions) > 5 else ROOM)
    assert actions == [
        "teleport to workshop", "focus on aluminum foil", "look around", "connect battery anode to black wire terminal 1",
        "connect battery cathode to blue wire terminal 1", "connect black wire terminal 2 to cathode in green light bulb",
        "connect orange wire terminal 2 to anode in green light bulb", "connect aluminum foil terminal 1 to blue wire terminal 2",
        "connect aluminum foil terminal 2 to orange wire terminal 1", "wait1", "look around", "move aluminum foil to yellow box"]


def test_what_is_written_down():
    wrong = ["teleport to workshop", "focus on inclined plane with a tin surface"]
    noted = revised_document(PLANES, "", wrong, success=False)
    assert read_document(noted) == {"least friction": "soapy water", "most friction": "tin"}
    assert revised_document(PLANES, "", wrong, success=True) == noted.replace("tin", "x").replace("soapy water", "tin").replace(
        "x", "soapy water")
    assert read_document(revised_document(BOOK, noted, ["move book to purple box"], True))["book (On Species)"] == "nonconductive"
    assert revised_document(BOOK, noted, ["look around"], False) == noted              # no answer, nothing new
    assert revised_document(BOOK, noted, ["move book to purple box"], True, Style(notes=False)) == GENERAL


def test_replies_to_a_conversation():
    first = f"<|im_start|>user\nDocument:\nempty\n\nTask: {PLANES}\nhallway: picture<|im_end|>\n<|im_start|>assistant\n"
    assert reply_to(first) == "<action>teleport to workshop</action>"
    ask = (f"<|im_start|>user\nDocument:\nempty\n\nTask: {PLANES}\nhallway: picture\n\nAction: teleport to workshop\n"
           "Observation: You teleport to the workshop.\nAction: focus on inclined plane with a tin surface\n"
           "Observation: You focus on the plane.\n\nOutcome: FAILURE (task not completed)\n"
           "Write the skill.<|im_end|>\n<|im_start|>assistant\n")
    assert "<skill>\nKnown here:\n- least friction: soapy water\n- most friction: tin\n</skill>" in reply_to(ask)
    assert "- least friction: tin" in reply_to(ask.replace("FAILURE (task not completed)", "SUCCESS"))


def test_rooms_are_shown_in_one_line():
    from sagelib.scienceworld_view import short
    look = ("This room is called the workshop. In it, you see: \n\tthe agent\n\ta substance called air\n"
            "\tan inclined plane with a tin surface\n\ta stopwatch, which is deactivated. \n"
            "\ta table. On the table is: a battery, a orange wire, a switch, which is off, a red light bulb, which is on.\n"
            "\ta ultra low temperature freezer. The ultra low temperature freezer door is closed. \n"
            "\ta glass jar (containing a substance called sodium chloride)\n\ta green box (containing nothing)\n"
            "You also see:\n\tA door to the hallway (that is open)")
    assert short(look) == ("workshop: inclined plane with a tin surface; stopwatch; table: battery, orange wire, switch, red "
                           "light bulb (on); ultra low temperature freezer; glass jar (containing sodium chloride); green box")
    assert short("You teleport to the workshop.") == "You teleport to the workshop."


def test_exercises_can_be_solved_from_their_text_alone():
    pairs = copying_pairs(300, 3)
    assert pairs == copying_pairs(300, 3) != copying_pairs(300, 4) and len({p["text"] for p in pairs}) > 280
    assert {p["kind"] for p in pairs} == {"surface", "box", "fetch", "plane note", "box note"}
    for pair in pairs:
        goal = read_goal(re.search(r"Task: ([^\n]*)", pair["text"])[1])
        if pair["kind"] in ("surface", "box"):
            assert pair["code"] == f"<action>{goal.plan(goal.known(pair['text']))[-1]}</action>"
        elif pair["kind"] == "fetch":
            assert pair["code"] == "\n".join(f"<action>{action}</action>" for action in goal.fetch())
        else:
            action = re.search(r"Action: (.*)", pair["text"])[1]
            assert read_document(pair["code"]) == goal.learnt(goal.answered(action), "SUCCESS" in pair["text"])
