"""The relations of a MiniWiki world, and how its articles and questions express them.

Every relation is functional (one object per subject), so a chain of relations has exactly one answer.
"""

from dataclasses import dataclass

COUNTRIES = "Valdoria Kestria Ormland Threnia Calvara Bronia Estmark Lunevia Sarholm Quillia Norwold Pellan".split()
OCCUPATIONS = "painter composer architect engineer poet sailor surgeon chemist lawyer actor journalist athlete".split()
GENRES = {
    "film": "drama comedy thriller western mystery romance war horror".split(),
    "book": "crime fantasy history travel war romance poetry adventure".split(),
    "band": "rock jazz folk pop punk soul".split(),
}
MONTHS = "January February March April May June July August September October November December".split()


@dataclass(frozen=True, slots=True)
class Relation:
    """``subject`` kind -> ``target``: a kind of entity, or one of the value types year, date, count, word.
    Templates: ``{s}`` the subject in an article, ``{o}`` the object, ``{x}`` the subject's noun phrase in a question."""

    subject: str
    name: str
    target: str
    says: tuple[str, ...]  # article sentences
    noun: str  # "the <noun> of {x}"
    asks: tuple[str, ...]  # direct questions
    that: str = ""  # noun phrase with a relative clause, for bridge questions


RELATIONS = (
    Relation("person", "birthplace", "town", ("{s} was born in {o}.", "{s} comes from {o}.", "The birthplace of {s} is {o}."),
             "birthplace", ("Where was {x} born?", "In which town was {x} born?"), "the town where {x} was born"),
    Relation("person", "born", "date", ("{s} was born on {o}.", "The date of birth of {s} is {o}."),
             "date of birth", ("When was {x} born?",)),
    Relation("person", "spouse", "person", ("{s} is married to {o}.", "{s} married {o}.", "The spouse of {s} is {o}."),
             "spouse", ("Who is married to {x}?", "Who married {x}?"), "the person who married {x}"),
    Relation("person", "father", "person", ("{o} is the father of {s}.", "The father of {s} is {o}."),
             "father", ("Who is the father of {x}?",), "the man whose child is {x}"),
    Relation("person", "employer", "company", ("{s} works for {o}.", "{s} is employed by {o}."),
             "employer", ("Which company employs {x}?", "Who does {x} work for?"), "the company that employs {x}"),
    Relation("film", "director", "person", ("{s} was directed by {o}.", "The director of {s} is {o}.", "{o} directed {s}."),
             "director", ("Who directed {x}?",), "the person who directed {x}"),
    Relation("film", "star", "person", ("{s} stars {o}.", "The star of {s} is {o}.", "{o} plays the lead in {s}."),
             "star", ("Who stars in {x}?", "Who plays the lead in {x}?"), "the person who stars in {x}"),
    Relation("film", "studio", "company", ("{s} was produced by {o}.", "The studio behind {s} is {o}."),
             "studio", ("Which company produced {x}?",), "the company that produced {x}"),
    Relation("film", "released", "year", ("{s} was released in {o}.", "{s} came out in {o}."),
             "release year", ("When was {x} released?",)),
    Relation("book", "author", "person", ("{s} was written by {o}.", "The author of {s} is {o}.", "{o} wrote {s}."),
             "author", ("Who wrote {x}?",), "the person who wrote {x}"),
    Relation("book", "publisher", "company", ("{s} was published by {o}.", "The publisher of {s} is {o}."),
             "publisher", ("Which company published {x}?",), "the company that published {x}"),
    Relation("book", "setting", "town", ("{s} is set in {o}.", "The story of {s} takes place in {o}."),
             "setting", ("In which town is {x} set?",), "the town where {x} is set"),
    Relation("book", "published", "year", ("{s} appeared in {o}.", "{s} was first printed in {o}."),
             "year of publication", ("When did {x} appear?",)),
    Relation("band", "founder", "person", ("{s} was founded by {o}.", "The founder of {s} is {o}.", "{o} founded {s}."),
             "founder", ("Who founded {x}?",), "the person who founded {x}"),
    Relation("band", "hometown", "town", ("{s} was formed in {o}.", "The hometown of {s} is {o}."),
             "hometown", ("In which town was {x} formed?",), "the town where {x} was formed"),
    Relation("band", "formed", "year", ("{s} has played since {o}.", "{s} gave a first concert in {o}."),
             "year of the first concert", ("Since when has {x} played?",)),
    Relation("town", "river", "river", ("{s} lies on {o}.", "{s} stands on the banks of {o}."),
             "river", ("On which river does {x} lie?",), "the river on which {x} lies"),
    Relation("town", "mayor", "person", ("The mayor of {s} is {o}.", "{s} is governed by mayor {o}."),
             "mayor", ("Who governs {x}?",), "the person who governs {x}"),
    Relation("town", "country", "word", ("{s} is in {o}.", "{s} belongs to {o}."),
             "country", ("In which country is {x}?",)),
    Relation("town", "population", "count", ("{s} has {o} inhabitants.", "The population of {s} is {o}."),
             "population", ("How many inhabitants does {x} have?",)),
    Relation("river", "mouth", "river", ("{s} flows into {o}.", "{s} ends where it meets {o}."),
             "mouth", ("Into which river does {x} flow?",), "the river into which {x} flows"),
    Relation("river", "length", "count", ("{s} is {o} kilometres long.", "The length of {s} is {o} kilometres."),
             "length", ("How many kilometres long is {x}?",)),
    Relation("company", "owner", "person", ("{s} is owned by {o}.", "The owner of {s} is {o}.", "{o} owns {s}."),
             "owner", ("Who owns {x}?",), "the person who owns {x}"),
    Relation("company", "headquarters", "town", ("{s} is based in {o}.", "The headquarters of {s} are in {o}."),
             "headquarters", ("In which town is {x} based?",), "the town where {x} is based"),
    Relation("company", "established", "year", ("{s} was established in {o}.", "{s} opened in {o}."),
             "year of establishment", ("When was {x} established?",)),
)  # fmt: skip

KINDS = {"person": 0.36, "film": 0.14, "book": 0.12, "band": 0.10, "town": 0.14, "river": 0.04, "company": 0.10}
BY_KIND = {kind: tuple(r for r in RELATIONS if r.subject == kind) for kind in KINDS}
RELATION = {(r.subject, r.name): r for r in RELATIONS}

# (phrase, inner relation, outer relation): what 2WikiMultihopQA calls inference, a relation that no article states.
INFERENCES = (
    ("grandfather on the father's side", "father", "father"),
    ("father-in-law", "spouse", "father"),
)

# (kind, relation, question about the smaller one, question about the larger one)
COMPARISONS = (
    ("film", "released", "Which film was released earlier, {a} or {b}?", "Which film was released later, {a} or {b}?"),
    ("book", "published", "Which book appeared earlier, {a} or {b}?", "Which book appeared later, {a} or {b}?"),
    ("band", "formed", "Which band has played for longer, {a} or {b}?", "Which band is younger, {a} or {b}?"),
    ("company", "established", "Which company is older, {a} or {b}?", "Which company is younger, {a} or {b}?"),
    ("person", "born", "Who was born earlier, {a} or {b}?", "Who was born later, {a} or {b}?"),
    ("town", "population", "Which town has fewer inhabitants, {a} or {b}?", "Which town has more inhabitants, {a} or {b}?"),
    ("river", "length", "Which river is shorter, {a} or {b}?", "Which river is longer, {a} or {b}?"),
)  # fmt: skip

# (kind, relation, question about the earlier or the later one)
IN_TIME = (
    ("film", "released", "Which film was released {when}, {a} or {b}?"),
    ("book", "published", "Which book appeared {when}, {a} or {b}?"),
    ("band", "formed", "Which band gave its first concert {when}, {a} or {b}?"),
    ("company", "established", "Which company was established {when}, {a} or {b}?"),
    ("person", "born", "Who was born {when}, {a} or {b}?"),
)

# (kind, relation, question whether it is the same for both)
SAME = (
    ("town", "country", "Are {a} and {b} in the same country?"),
    ("person", "birthplace", "Were {a} and {b} born in the same town?"),
    ("film", "director", "Do {a} and {b} have the same director?"),
    ("company", "owner", "Are {a} and {b} owned by the same person?"),
)
