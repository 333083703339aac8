import json
from pathlib import Path

import pytest
from pydantic import BaseModel
from scripts.reference.study import reference

from nearmetal.errors import BadInputError
from nearmetal.study import plan, spec
from nearmetal.study.order import AGAIN, Order
from nearmetal.study.shipped import read_study
from nearmetal.study.spec import parse_nodes, parse_study
from nearmetal.workloads.engine import engine_argv

STUDIES = Path(__file__).parents[2] / "studies"

GOOD = """
format = 1
name = "t"
baseline = "veth"
[[path]]
name = "veth"
[[path]]
name = "bridge"
[[workload]]
name = "latency"
sizes = [8, "1 KiB"]
"""


def errors_of(text: str) -> str:
    with pytest.raises(BadInputError) as caught:
        parse_study(text, "t.toml")
    assert caught.value.exit_code == 2
    return caught.value.render()


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.toml")), ids=lambda p: p.name)
def test_every_shipped_study_is_read(path: Path) -> None:
    study, _ = read_study(path)
    assert study.title
    assert plan.block(study, 0)


def test_all_errors_are_reported_together_with_their_locations() -> None:
    text = errors_of(
        'format = 2\nname = "x y"\nbaseline = "q"\nmarg = 1\nmargin = "500 %"\n'
        '[[path]]\nname = "a"\nkinds = "b"\n[[workload]]\nname = "l"\nsizes = [-1, "4 KB"]\niterations = 0\n'
        '[trials]\ntimeout = "5 parsecs"\nmin_blocks = 2\n'
    )
    assert "t.toml has 10 errors" in text
    for place in (
        "format:",
        "name:",
        "marg: unknown key; did you mean 'margin'?",
        "margin: '500 %' is not a share above 0 and below 100 %: write '5 %' or 0.05",
        "path[0].kinds: unknown key; did you mean 'kind'?",
        "workload[0].sizes[0]:",
        "workload[0].sizes[1]: '4 KB' is not a size: KB may mean powers of 1000 or of 1024: write '4 KiB' for a power",
        "workload[0].iterations:",
        "trials.timeout: '5 parsecs' is not a duration",
        "trials.min_blocks:",
    ):
        assert place in text, place
    assert text.count("hint:") == 1


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (('[[path]]\nname = "bridge"', '[[path]]\nname = "veth"'), "two of them have the name 'veth'"),
        (('baseline = "veth"', 'baseline = "gone"'), "the baseline 'gone' is not the name of a path"),
        (('name = "bridge"', f'name = "bridge{AGAIN}"'), "are kept for the second measurement"),
        (('sizes = [8, "1 KiB"]', "sizes = [8, 8]"), "a message size is given twice: 8 bytes"),
        (("format = 1", "format = "), "is not TOML"),
        (('name = "t"', ""), "name: missing"),
    ],
)
def test_errors_name_what_is_wrong_in_a_study(change: tuple[str, str], complaint: str) -> None:
    assert complaint in errors_of(GOOD.replace(*change))


def test_a_missing_or_binary_study_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="cannot read the study"):
        read_study(tmp_path / "none.toml")
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(BadInputError, match="not UTF-8"):
        read_study(tmp_path / "b.toml")


def test_a_block_has_every_combination_once_and_the_baseline_twice() -> None:
    study = parse_study(GOOD, "t")
    labels = sorted(order.path.label for order in plan.block(study, 0))
    assert labels == ["bridge", "veth", "veth" + AGAIN]


def test_the_order_depends_only_on_seed_and_block() -> None:
    study = parse_study(GOOD, "t")
    assert plan.block(study, 3) == plan.block(study, 3)
    orders = {tuple(o.path.label for o in plan.block(study, number)) for number in range(20)}
    assert len(orders) == 6, "20 blocks of 3 should show every order"
    other = parse_study(GOOD.replace("format = 1", "format = 1\nseed = 2"), "t")
    assert [plan.block(study, n) for n in range(4)] != [plan.block(other, n) for n in range(4)]


def test_trial_numbers_are_unique_and_seeds_differ() -> None:
    study = parse_study(GOOD, "t")
    orders = [order for number in range(5) for order in plan.block(study, number)]
    assert sorted(order.trial for order in orders) == list(range(15))
    assert len({order.seed for order in orders}) == 15


def test_an_order_round_trips_through_json() -> None:
    for order in plan.block(parse_study(GOOD, "t"), 1):
        assert Order.from_json(order.to_json()) == order


def test_the_reference_page_matches_the_models() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "study.md"
    assert page.read_text() == reference(), "run `make reference`"


PACED = GOOD.replace("[[workload]]\n", "[[workload]]\npace = 'random'\n", 1)


def test_random_pauses_cover_the_longest_moderation_in_the_study() -> None:
    def pause_us(text: str) -> object:
        return plan.block(parse_study(text, "t"), 0)[0].workload.options.get("pace_us")

    assert pause_us(GOOD) is None
    assert pause_us(PACED) == 500
    slow = PACED + "[[setting]]\nname = 'slow'\nknobs = { 'nic.rx-usecs' = 900, 'nic.tx-usecs' = 20 }\n"
    assert pause_us(slow) == 900
    assert pause_us(slow.replace("pace =", "pace_range = '70 us'\npace =")) == 70
    assert pause_us(slow.replace("900", "'900'")) == 900, "text, which a knob takes, too, was passed over"
    assert pause_us(PACED + "[tune.knobs]\n'nic.rx-usecs' = [0, 50, '800']\n") == 800, "so were values to try"


def test_an_impossible_pace_is_refused() -> None:
    with pytest.raises(BadInputError, match="pace_range is for pace = 'random'"):
        parse_study(PACED.replace("pace = 'random'", "pace_range = '70 us'"), "t")
    with pytest.raises(BadInputError, match="'sockperf' paces its messages itself"):
        parse_study(PACED.replace("pace = 'random'", "pace = 'random'\nkind = 'sockperf'"), "t")


def test_the_engine_gets_the_pace_and_the_seed_of_the_trial() -> None:
    order = plan.block(parse_study(PACED, "t"), 0)[0]
    argv = engine_argv(order)
    assert argv[argv.index("--pace-us") + 1] == "500"
    assert argv[argv.index("--seed") + 1] == str(order.seed)
    assert "--pace-us" not in engine_argv(plan.block(parse_study(GOOD, "t"), 0)[0])


@pytest.mark.parametrize("value", ["5", 5, "0 %", "-5 %", "x %", "nan", True, [], "100 %"])
def test_an_invalid_share_is_refused_with_an_example(value: object) -> None:
    with pytest.raises(BadInputError, match=r"is not a share above 0 and below 100 %: write '5 %' or 0\.05"):
        parse_study(GOOD.replace("format = 1", f"format = 1\nmargin = {json.dumps(value)}"), "t")


@pytest.mark.parametrize(
    ("table", "key"),
    [
        *(("", f"{key} = #") for key in ("format", "seed")),
        *(("[trials]", f"{key} = #") for key in ("min_blocks", "max_blocks", "storm", "timeout")),
        *(("[[workload]]\nname = 'w'", f"{key} = #") for key in ("iterations", "warmup", "ranks", "pace_range")),
        *(("[[workload]]\nname = 'w'", f"{key} = [0, #]") for key in ("sizes", "placement")),
        *(("[[host.node]]\nname = 'a'", f"{key} = #") for key in ("port", "connect_timeout_s")),
        ("[tune]\nknobs = { a = [1] }", "max_trials = #"),
        ("[tune]\nknobs = { a = [1] }", "weights = { a = # }"),
    ],
)
@pytest.mark.parametrize("value", ["true", "false"])
def test_true_and_false_are_no_numbers(table: str, key: str, value: str) -> None:
    """Python counts them as 1 and 0: a study with `iterations = true` measured one."""
    line = key.replace("#", value)
    text = f"{GOOD}{table}\n{line}\n" if table else f"{line}\n{GOOD.replace('format = 1', '')}"
    assert f": {value} is no number" in errors_of(text)


def test_every_number_of_a_study_is_in_the_list_above() -> None:
    """A new key of a number's type is to be checked, too: `Whole` and `Number` do so, `int` and `float` do not."""
    plain = [
        f"{model.__name__}.{name}"
        for model in vars(spec).values()
        if isinstance(model, type) and issubclass(model, BaseModel)
        for name, field in model.model_fields.items()
        if field.annotation in {int, float} and not field.metadata
    ]
    assert plain == []


def test_a_run_whose_numbers_were_true_can_still_be_read() -> None:
    study = parse_study(GOOD + "iterations = true\n", "t.toml", measured=True)
    assert study.workload[0].iterations == 1
    assert parse_study(GOOD.replace("1 KiB", "1.3 kib"), "t.toml", measured=True).workload[0].sizes == [8, 1331]


@pytest.mark.parametrize(
    ("placement", "complaint"),
    [
        ("[0, -1]", "workload[0].placement[1]: input should be greater than or equal to 0 (it is -1)"),
        (
            "'sprad'",
            "placement: it is 'spread', 'packed' or a list of nodes, in square brackets, not 'sprad'",
        ),
        ("{ a = 1 }", "placement: it is 'spread', 'packed' or a list of nodes, in square brackets"),
    ],
)
def test_a_wrong_placement_is_one_error(placement: str, complaint: str) -> None:
    text = errors_of(f"{GOOD}placement = {placement}\n")
    assert "t.toml has 1 error" in text
    assert complaint in text


def test_an_unknown_key_of_a_hosts_file_is_told_that_files_keys() -> None:
    with pytest.raises(BadInputError, match="nod: unknown key; did you mean 'node'") as caught:
        parse_nodes('[[nod]]\nname = "a"\n', "hosts.toml")
    assert "node: missing" in caught.value.message
    with pytest.raises(BadInputError, match=r"node\[0\]\.adress: unknown key; did you mean 'address'"):
        parse_nodes('[[node]]\nname = "a"\nadress = "b"\n', "hosts.toml")
