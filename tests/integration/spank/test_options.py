"""What sbatch's user may type after --burst, --stage-in and --stage-out, and what comes of it."""

from pathlib import Path

import pytest

from tests.integration.spank.plugin import Context, Plugin, Ran, build

IN = "_SLURM_SPANK_OPTION_vgpu_burst_stage_in"
MIB = "VGPU_BURST_INPUT_MIB"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("options"), "options", "options.c")


@pytest.fixture
def plugin(program: Path, tmp_path: Path) -> Plugin:
    return Plugin(program=program, folder=tmp_path)


def typed(plugin: Plugin, *words: str, program: str = "sbatch", arguments: tuple[str, ...] = ()) -> Ran:
    context = Context.LOCAL if program == "srun" else Context.ALLOCATOR
    return plugin.run(context, "init", *words, "post", arguments=arguments, HOST_PROGRAM=program)


@pytest.mark.parametrize("word", ["auto", "never", "always", "cloud-aws", "a", "x" * 64, "A.b_c+d-1"])
def test_a_word_is_taken(plugin: Plugin, word: str) -> None:
    ran = typed(plugin, f"burst={word}")
    assert (ran.code, ran.err) == (0, "")
    assert ran.returned == {"init": "0", "burst": "0", "post": "0"}


@pytest.mark.parametrize("word", ["", "a b", "x" * 65, "site/pool", "ü", "a\nb", "a,b", "$(id)", "'", "a=b"])
def test_what_is_no_word_is_refused_in_a_sentence(plugin: Plugin, word: str) -> None:
    ran = typed(plugin, f"burst={word}")
    assert ran.returned["burst"] == "-1"
    assert ran.err == "error: --burst: the word must be auto, never, always or the name of a pool\n"


def test_a_pool_that_the_admin_does_not_list_is_refused_with_those_there_are(plugin: Plugin) -> None:
    arguments = ("pools=cloud-aws,edge",)
    for word in ("always", "never", "auto", "edge", "cloud-aws"):
        assert typed(plugin, f"burst={word}", arguments=arguments).returned["burst"] == "0"
    for word in ("alwys", "cloud", "edge2", "cloud-aws2"):
        ran = typed(plugin, f"burst={word}", arguments=arguments)
        assert ran.returned["burst"] == "-1"
        assert ran.err == (f"error: --burst={word}: this is none of auto, never, always and the pools cloud-aws,edge\n")


@pytest.mark.parametrize("command", ["srun", "salloc"])
def test_only_a_batch_job_can_burst(plugin: Plugin, command: str) -> None:
    assert typed(plugin, "burst=never", program=command).returned["burst"] == "0"
    for words in ("burst=always", "burst=edge", "stage-in=a", "stage-out=a"):
        ran = typed(plugin, words, program=command)
        assert ran.returned[words.partition("=")[0]] == "-1"
        assert ran.err.endswith("only a batch job can run in the cloud: submit it with sbatch\n")
        assert ran.err.count("\n") == 1


@pytest.mark.parametrize("context", [Context.LOCAL, Context.ALLOCATOR])
def test_a_command_in_a_job_does_not_take_the_jobs_options_for_its_own(plugin: Plugin, context: Context) -> None:
    own = f"own:SLURM_SPANK_{IN}"
    inherited = ("env", f"SLURM_SPANK_{IN}=5")
    assert plugin.run(context, own, before=inherited).returned == {own: "5"}
    assert plugin.run(context, "init", own, before=inherited).returned == {"init": "0", own: "-1"}


@pytest.mark.parametrize(
    "path", ["a", "a/b", "out/*", "a b", "..a", "a..", "a/...", ".hidden", "ü/'\"$(id)", "x" * 255, "a\nb"]
)
def test_a_path_below_the_jobs_folder_is_taken(plugin: Plugin, path: str) -> None:
    assert typed(plugin, f"stage-in={path}", f"stage-out={path}").err == ""


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/a",
        "..",
        "../a",
        "a/..",
        "a/../b",
        ".",
        "./a",
        "a/.",
        "a//b",
        "a/",
        "x" * 256,
        "a,",
        ",a",
        "a,../b",
        "a/" * 2100,
    ],
)
def test_a_path_that_leads_elsewhere_is_refused_in_a_sentence(plugin: Plugin, path: str) -> None:
    ran = typed(plugin, f"stage-out={path}")
    assert ran.returned["stage-out"] == "-1"
    assert ran.err.startswith(f"error: --stage-out={path}: a path ")
    assert ran.err.count("\n") == 1


def test_an_option_that_is_given_more_than_once_means_all_of_it(plugin: Plugin) -> None:
    ran = plugin.run(
        Context.ALLOCATOR, "init", "stage-in=a,b", "stage-in=c/d", "stage-in=e f", "post", HOST_PROGRAM="sbatch"
    )
    assert ran.err == ""
    assert ran.returned[f"control {IN}=a,b,c/d,e"] == "f"


def test_how_much_a_job_brings_is_said_in_whole_mebibytes(plugin: Plugin) -> None:
    (plugin.folder / "data" / "deep").mkdir(parents=True)
    (plugin.folder / "data" / "deep" / "a.csv").write_bytes(bytes(3 << 20))
    (plugin.folder / "b.csv").write_bytes(b"x")
    (plugin.folder / "data" / "loop").symlink_to("..")
    for words, mib in (
        (("stage-in=data", "stage-in=*.csv"), 4),
        (("stage-in=data",), 3),
        (("stage-in=b.csv,none",), 1),
        (("stage-in=none",), -1),
        (("stage-out=data",), -1),
    ):
        ran = plugin.run(
            Context.ALLOCATOR, "init", *words, "post", f"own:{MIB}", before=("env", f"{MIB}=7"), HOST_PROGRAM="sbatch"
        )
        assert (ran.err, ran.returned[f"own:{MIB}"]) == ("", str(mib))


def test_more_paths_than_a_job_can_have_are_refused(plugin: Plugin) -> None:
    assert typed(plugin, "stage-in=" + ",".join("a" * 100)).err == ""
    ran = typed(plugin, "stage-in=" + ",".join("a" * 99), "stage-in=b,c")
    assert ran.err.endswith("these are too many paths: pack the files into one\n")


def test_a_line_of_plugstack_conf_with_what_it_does_not_know_gives_no_options(plugin: Plugin) -> None:
    for arguments in (("pool=a",), ("pools=",), ("pools=a", "x")):
        ran = typed(plugin, "burst=auto", arguments=arguments)
        assert ran.returned["init"] == "-1"
        assert ran.returned["burst"] == "-2"  # there is no such option
        assert "is no option of this plugin: known is pools=NAME,NAME..." in ran.err


@pytest.mark.parametrize("context", [Context.REMOTE, Context.SLURMD, Context.JOB_SCRIPT])
def test_it_does_nothing_on_nodes(plugin: Plugin, context: Context) -> None:
    ran = plugin.run(context, "init", "burst=auto", "post", arguments=("whatever",))
    assert (ran.returned, ran.err) == ({"init": "0", "burst": "-2", "post": "0"}, "")
