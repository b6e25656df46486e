import re
from xml.etree import ElementTree

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

from normalign_reproduction.report.svg import drawing_style, svg_text

mpl.use("agg")


def drawn(name="one", title="a line"):
    with drawing_style():
        figure, axis = plt.subplots()
        axis.plot([0, 1], [0, 1], color="#d9762b")
        axis.imshow([[0.0, 1.0]])
        axis.set_title("words")
        return svg_text(figure, name=name, title=title)


@pytest.fixture(scope="module")
def text():
    return drawn()


def test_it_is_one_well_formed_element_without_ground(text):
    root = ElementTree.fromstring(text)
    assert root.tag.endswith("svg")
    assert root.get("aria-label") == "a line"
    assert "#ffffff" not in text


def test_ink_follows_the_page_and_colours_stay(text):
    assert "currentColor" in text
    assert "#010203" not in text
    assert "#d9762b" in text


def test_words_stay_words_in_the_pages_font(text):
    assert ">words</text>" in text
    fonts = set(re.findall(r"font(?:-family)?: ([^;\"]*)", text))
    assert fonts
    assert all(font.endswith("system-ui, sans-serif") for font in fonts)


def test_names_and_their_uses_get_the_same_prefix(text):
    names = set(re.findall(r'\bid="([^"]+)"', text))
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', text))
    assert all(name.startswith("one-") for name in names)
    assert used <= names


def test_the_same_picture_gives_the_same_text(text):
    assert drawn() == text
    assert drawn(name="two") == text.replace("one-", "two-")


def test_a_title_with_signs_is_escaped():
    root = ElementTree.fromstring(drawn(title='a < b & "c"'))
    assert root.get("aria-label") == 'a < b & "c"'


def test_the_figure_is_closed_and_the_style_is_over(text):
    assert not plt.get_fignums()
    assert mpl.rcParams["text.color"] != "#010203"
