"""A person's name entered on a page becomes the name of a folder, and different names get different folders."""

import pytest

from plumbline.pipelines.web.page_input import BadNameError, clean_name


@pytest.mark.parametrize("name", ["ann", "Zoë Müller", " ann ", "अनिल", "李雷", "a.b@c.org", "x" * 48, "7"])
def test_a_name_may_be_of_any_script(name: str) -> None:
    assert clean_name(name, "rater") == name.strip() == clean_name(clean_name(name, "rater"), "rater")


@pytest.mark.parametrize(
    "name", ["", " ", ".", "..", ".ann", "-x", "a/b", "a\\b", "a\0b", "a\nb", "a*", "x" * 49, "a\u202eb"]
)
def test_a_name_that_could_be_a_path_or_look_like_another_name_is_refused(name: str) -> None:
    with pytest.raises(BadNameError, match="rater: expected a name"):
        clean_name(name, "rater")


def test_both_forms_of_an_accent_give_the_same_name() -> None:
    assert clean_name("Zoe\u0308", "rater") == clean_name("Zo\u00eb", "rater")
