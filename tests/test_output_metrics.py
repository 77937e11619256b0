"""What the metrics for `select` call equal: letters, signs, numbers, other alphabets."""

import math

import pytest

from scope_torch.errors import InputError
from scope_torch.metrics import contains, exact_match, normalised, number, token_f1

SAME = [
    ("The Eiffel Tower", "eiffel tower."),
    ("The Matrix", "Matrix, The"),
    ("A", "(a)."),
    ("A", "The A"),
    ("the", "The"),
    ("-5", "−5"),
    ("+5", "5"),
    ("$1,000.", "1000"),
    ("1,234,567.5", "1234567.5"),
    ("10–12", "10-12"),
    ("10²", "10^2"),
    ("C++", "c++."),
    ("U.S.", "us"),
    ("well-known_name", "wellknownname"),
    ("don't", "don’t"),
    ("Hawai'i", "Hawaiʻi"),
    ("北京", "北京。"),
    ("Ａ１", "a1"),  # full width
    ("café", "cafe\u0301"),
    ("", ""),
]
DIFFERENT = [
    ("A", ""),
    ("A", "the"),
    ("A", "B"),
    ("50", "5.0"),
    ("1.5", "15"),
    ("1,5", "15"),
    ("1,2,3", "123"),
    (".5", "5"),
    ("-5", "5"),
    ("-$5", "$5"),
    ("1/2", "12"),
    ("10²", "102"),
    ("10^2", "102"),
    ("C++", "C#"),
    ("C", "C#"),
    ("<", ">"),
    ("", "!"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_the_same_answer_in_other_signs_is_right(one, other):
    assert exact_match(one, other) == exact_match(other, one) == 1.0
    assert token_f1(one, other) == 1.0


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_another_letter_number_or_name_is_wrong(one, other):
    assert exact_match(one, other) == exact_match(other, one) == 0.0
    assert token_f1(one, other) == 0.0


@pytest.mark.parametrize("metric", [exact_match, contains, token_f1])
def test_no_output_is_not_the_word_none(metric):
    """Clients say None for a reply without text; an LLM that never answers would be right."""
    assert metric("none", None) == metric("None", None) == metric("None of them", None) == 0.0
    assert metric("none", "None.") == metric(None, None) == metric(None, "None") == 1.0


def test_a_letter_of_a_choice_is_found_and_an_article_is_not_one():
    assert contains("A", "The answer is A.") == contains("B", "The answer is B.") == 1.0
    assert contains("A", "A. Paris") == contains("A", "(A) Paris") == 1.0
    assert contains("A", "It is a dog.") == contains("C", "I prefer C++.") == 0.0
    assert contains("-5", "It is 5.") == contains("5", "It is -5.") == 0.0


@pytest.mark.parametrize(
    ("expected", "output", "right"),
    [
        ("-5", "x = −5", True),
        ("5", "x = −5", False),
        ("-5", "-$5", True),
        ("19", "COVID-19", True),
        ("12", "10-12", True),
        ("12", "10–12", True),
        ("3", "1,2,3", True),
        ("1300", "either 1,200, or 1,300.", True),
        ("-1234.5", "(-1,234.5)", True),
        ("-0.5", "−.5", True),
        ("0.00001", "1e−5", True),
        ("1" * 400, "2" * 400, False),
        ("5", "none", False),
        ("1/2", "2", False),
        ("1/2", "It is 0.5.", True),
        ("0.25", "4 of them, so -1/-4", True),
        ("7", "14/2 = 7", True),
        ("2024", "3/4/2024", True),
        ("2", "1 / 2", True),
        ("0", "1/0", True),
    ],
)
def test_the_last_number_has_its_own_sign_and_commas(expected, output, right):
    assert number()(expected, output) == right


@pytest.mark.parametrize("tolerance", [1, 5, -0.1, math.nan, "0.1", None])
def test_a_tolerance_with_which_all_numbers_agree_is_refused(tolerance):
    with pytest.raises(InputError, match=r"relative_tolerance=.* 0\.05 is 5%"):
        number(tolerance)


@pytest.mark.parametrize("text", [",111" * 30000 + ",1", "c" + "+" * 100000, "a " * 50000])
def test_long_outputs_are_graded_soon(text):
    assert number()("5", text) == 0.0
    assert normalised(text)
