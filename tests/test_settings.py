import pytest

from programs.settings import OPTIMIZERS, OptimizerNameError, Settings, stages_of


def test_a_name_is_one_stage_and_a_chain_several() -> None:
    assert all(stages_of(name) == (name,) for name in OPTIMIZERS)
    assert stages_of("chain:bootstrap,mipro") == ("bootstrap", "mipro")


@pytest.mark.parametrize(
    "name", ["magic", "chain:", "chain:bootstrap,magic", "bootstrap,mipro", "chain:bootstrap,", ""]
)
def test_a_wrong_name_is_refused_with_those_that_are_right(name: str) -> None:
    with pytest.raises(OptimizerNameError, match=r"expected labeled, knn, .* or chain:ONE,ANOTHER"):
        stages_of(name)


def test_the_seed_that_takes_effect_is_told() -> None:
    assert Settings("bootstrap", seed=5).effective_seed == 0
    assert Settings("mipro", seed=5).effective_seed == 5
    assert Settings("mipro", seed=0).effective_seed == 9
    assert Settings("gepa", seed=0).effective_seed == 0
    assert Settings("reanchor", seed=5).effective_seed == 0
    assert Settings("chain:copro,mipro,simba", seed=0).effective_seed == "0, 9, 0"


def test_trials_replace_the_size_of_auto() -> None:
    assert [Settings(auto=auto).size for auto in ("light", "medium", "heavy")] == [6, 12, 18]
    assert Settings(auto="heavy", n_trials=2).size == 2


def test_stages_say_what_they_need() -> None:
    assert not Settings("chain:labeled,bootstrap,reanchor").needs_valset
    assert Settings("chain:bootstrap,reanchor", n_trials=5).label == "bootstrap → reanchor"
    assert Settings("chain:labeled,gepa").needs_valset
    assert Settings("labeled").needs_step_demos
    assert not Settings("mipro").needs_step_demos
    assert Settings("mipro", step_demos=True).needs_step_demos
