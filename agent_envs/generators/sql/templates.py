"""The questions about the databases: (level, kind of answer, question, SQL).

Slots stand for values that are drawn when a question is made: ``{table.column}`` (a value of that column),
``{3-9}`` (an integer) and ``{month}`` (a month of 2023 or 2024). In the SQL the same slot
becomes a literal, for a month ``'2024-03'``. A question may have two wordings, separated by " | ".

Kinds of answer: ``number`` (exact), ``average`` (to two decimals), ``percentage`` (the same, with or without "%"),
``name`` (one text), ``names`` (a set of texts).
`TOP` wraps a query of (answer, value) and keeps those with the largest value, `LOW` those with the smallest.
"""

_FIRST = "SELECT answer FROM (SELECT answer, RANK() OVER (ORDER BY value {}) AS place FROM ({})) WHERE place = 1"


def TOP(inner: str) -> str:
    """A query of the answers with the largest value."""
    return _FIRST.format("DESC", inner)


def LOW(inner: str) -> str:
    """A query of the answers with the smallest value."""
    return _FIRST.format("ASC", inner)


_ITEMS = "order_items i JOIN orders o ON o.id = i.order_id JOIN products p ON p.id = i.product_id"
_BOUGHT = f"{_ITEMS} JOIN customers c ON c.id = o.customer_id"
_LENT = "loans l JOIN books b ON b.id = l.book_id JOIN members m ON m.id = l.member_id"
_FLOWN = "flights f JOIN airlines a ON a.id = f.airline_id JOIN destinations d ON d.code = f.code"
_SCORED = "goals g JOIN players p ON p.id = g.player_id JOIN teams t ON t.id = p.team_id"
_POINTS = (
    "SELECT t.name AS answer, SUM(CASE WHEN s.own > s.other THEN 3 WHEN s.own = s.other THEN 1 ELSE 0 END) AS value "
    "FROM teams t JOIN (SELECT home_id AS team, home_goals AS own, away_goals AS other FROM matches "
    "UNION ALL SELECT away_id, away_goals, home_goals FROM matches) s ON s.team = t.id GROUP BY t.id"
)

TEMPLATES = {
    "shop": (
        ("easy", "number", "How many customers live in {customers.city}? | How many customers are from {customers.city}?",
         "SELECT COUNT(*) FROM customers WHERE city = {customers.city}"),
        ("easy", "number", "What does the product {products.name} cost? | What is the price of the {products.name}?",
         "SELECT price FROM products WHERE name = {products.name}"),
        ("easy", "number", "How many orders have the status '{orders.status}'?",
         "SELECT COUNT(*) FROM orders WHERE status = {orders.status}"),
        ("easy", "name", "Which product in the category {products.category} is the most expensive?",
         TOP("SELECT name AS answer, price AS value FROM products WHERE category = {products.category}")),
        ("easy", "average", "What is the average price of the products in the category {products.category}?",
         "SELECT AVG(price) FROM products WHERE category = {products.category}"),
        ("normal", "number", "How many orders did {customers.name} place? | How many orders are there from {customers.name}?",
         "SELECT COUNT(*) FROM orders o JOIN customers c ON c.id = o.customer_id WHERE c.name = {customers.name}"),
        ("normal", "number", "How many orders were placed in {month} by customers from {customers.city}?",
         "SELECT COUNT(*) FROM orders o JOIN customers c ON c.id = o.customer_id "
         "WHERE strftime('%Y-%m', ordered) = {month} AND city = {customers.city}"),
        ("normal", "number", "How many pieces of the {products.name} were ordered in all, not counting cancelled orders?",
         f"SELECT SUM(quantity) FROM {_ITEMS} WHERE p.name = {{products.name}} AND status <> 'cancelled'"),
        ("normal", "names", "Who has placed at least {4-7} orders? Give their names.",
         "SELECT c.name FROM customers c JOIN orders o ON o.customer_id = c.id GROUP BY c.id HAVING COUNT(*) >= {4-7}"),
        ("normal", "names", "Which products in the category {products.category} cost less than {20-120}?",
         "SELECT name FROM products WHERE category = {products.category} AND price < {20-120}"),
        ("hard", "name", "Which customer from {customers.city} has spent the most on delivered orders?",
         TOP(f"SELECT c.name AS answer, SUM(quantity * price) AS value FROM {_BOUGHT} "
             "WHERE city = {customers.city} AND status = 'delivered' GROUP BY c.id")),
        ("hard", "number", "How much did customers from {customers.city} spend in all on products of the category "
         "{products.category}, leaving out cancelled orders?",
         f"SELECT SUM(quantity * price) FROM {_BOUGHT} "
         "WHERE city = {customers.city} AND category = {products.category} AND status <> 'cancelled'"),
        ("hard", "average", "What is the average value of the delivered orders placed in {month}, an order's value being the "
         "sum of quantity times price over its items?",
         f"SELECT AVG(value) FROM (SELECT SUM(quantity * price) AS value FROM {_ITEMS} "
         "WHERE status = 'delivered' AND strftime('%Y-%m', ordered) = {month} GROUP BY o.id)"),
        ("hard", "names", "Which products of the category {products.category} were never ordered from {customers.city}?",
         f"SELECT name FROM products WHERE category = {{products.category}} AND id NOT IN "
         f"(SELECT p.id FROM {_BOUGHT} WHERE city = {{customers.city}})"),
        ("hard", "name", "Which category brought in the most money with orders placed in {month}, leaving out cancelled orders?",
         TOP(f"SELECT category AS answer, SUM(quantity * price) AS value FROM {_ITEMS} "
             "WHERE strftime('%Y-%m', ordered) = {month} AND status <> 'cancelled' GROUP BY category")),
    ),
    "library": (
        ("easy", "number", "How many books of the genre {books.genre} are there? | How many {books.genre} books are there?",
         "SELECT COUNT(*) FROM books WHERE genre = {books.genre}"),
        ("easy", "number", "How many pages does '{books.title}' have?", "SELECT pages FROM books WHERE title = {books.title}"),
        ("easy", "name", "Which {books.genre} book has the most pages? | What is the longest book of the genre {books.genre}?",
         TOP("SELECT title AS answer, pages AS value FROM books WHERE genre = {books.genre}")),
        ("easy", "names", "Which authors come from {authors.country}?",
         "SELECT name FROM authors WHERE country = {authors.country}"),
        ("easy", "average", "How many pages do the books of the genre {books.genre} have on average?",
         "SELECT AVG(pages) FROM books WHERE genre = {books.genre}"),
        ("normal", "name", "Who wrote '{books.title}'? | Who is the author of '{books.title}'?",
         "SELECT name FROM authors WHERE id = (SELECT author_id FROM books WHERE title = {books.title})"),
        ("normal", "number", "How many books by authors from {authors.country} does the library have?",
         "SELECT COUNT(*) FROM books b JOIN authors a ON a.id = b.author_id WHERE country = {authors.country}"),
        ("normal", "number", "How often was a book borrowed in {month}? | How many loans began in {month}?",
         "SELECT COUNT(*) FROM loans WHERE strftime('%Y-%m', borrowed) = {month}"),
        ("normal", "name", "Who was the first member from {members.town} to join?",
         LOW("SELECT name AS answer, joined AS value FROM members WHERE town = {members.town}")),
        ("normal", "names", "Which books by {authors.name} does the library have?",
         "SELECT title FROM books b JOIN authors a ON a.id = b.author_id WHERE a.name = {authors.name}"),
        ("hard", "number", "How many different members from {members.town} have borrowed a book of the genre {books.genre}?",
         f"SELECT COUNT(DISTINCT m.id) FROM {_LENT} WHERE town = {{members.town}} AND genre = {{books.genre}}"),
        ("hard", "name", "Whose books were borrowed most often by members from {members.town}? Name the author.",
         TOP(f"SELECT a.name AS answer, COUNT(*) AS value FROM {_LENT} JOIN authors a ON a.id = b.author_id "
             "WHERE town = {members.town} GROUP BY a.id")),
        ("hard", "average", "For how many days on average were books of the genre {books.genre} kept, counting only loans that "
         "have been returned?",
         f"SELECT AVG(julianday(returned) - julianday(borrowed)) FROM {_LENT} "
         "WHERE genre = {books.genre} AND returned IS NOT NULL"),
        ("hard", "names", "Which members from {members.town} still have a book that they have not returned?",
         f"SELECT DISTINCT m.name FROM {_LENT} WHERE town = {{members.town}} AND returned IS NULL"),
        ("hard", "names", "Which {books.genre} books were never borrowed?",
         "SELECT title FROM books WHERE genre = {books.genre} AND id NOT IN (SELECT book_id FROM loans)"),
        ("hard", "number", "How many pages do the books that {members.name} borrowed have in all, counting each loan?",
         f"SELECT SUM(pages) FROM {_LENT} WHERE m.name = {{members.name}}"),
    ),
    "league": (
        ("easy", "number", "In which year was {teams.name} founded? | When was {teams.name} founded? Give the year.",
         "SELECT founded FROM teams WHERE name = {teams.name}"),
        ("easy", "number", "How many matches were played in {month}?",
         "SELECT COUNT(*) FROM matches WHERE strftime('%Y-%m', played) = {month}"),
        ("easy", "name", "Which position does {players.name} play?",
         "SELECT position FROM players WHERE name = {players.name}"),
        ("easy", "number", "How many goals were scored after minute {20-85}?",
         "SELECT COUNT(*) FROM goals WHERE minute > {20-85}"),
        ("normal", "name", "For which team does {players.name} play? | What is the team of {players.name}?",
         "SELECT t.name FROM teams t JOIN players p ON p.team_id = t.id WHERE p.name = {players.name}"),
        ("normal", "number", "How many goals has {players.name} scored?",
         f"SELECT COUNT(*) FROM {_SCORED} WHERE p.name = {{players.name}}"),
        ("normal", "name", "Who is the youngest player of {teams.name}?",
         TOP("SELECT p.name AS answer, born AS value FROM players p JOIN teams t ON t.id = p.team_id "
             "WHERE t.name = {teams.name}")),
        ("normal", "number", "How many goals did {teams.name} score in its home matches?",
         "SELECT SUM(home_goals) FROM matches JOIN teams t ON t.id = home_id WHERE t.name = {teams.name}"),
        ("normal", "names", "Which players of {teams.name} are {players.position}s?",
         "SELECT p.name FROM players p JOIN teams t ON t.id = p.team_id "
         "WHERE t.name = {teams.name} AND position = {players.position}"),
        ("hard", "name", "Who has scored the most goals for {teams.name}?",
         TOP(f"SELECT p.name AS answer, COUNT(*) AS value FROM {_SCORED} WHERE t.name = {{teams.name}} GROUP BY p.id")),
        ("hard", "number", "How many points has {teams.name}, with three for a win and one for a draw?",
         f"SELECT value FROM ({_POINTS}) WHERE answer = {{teams.name}}"),
        ("hard", "names", "With three points for a win and one for a draw, which teams have more than {14-22} points?",
         f"SELECT answer FROM ({_POINTS}) WHERE value > {{14-22}}"),
        ("hard", "number", "How many matches did {teams.name} win away from home?",
         "SELECT COUNT(*) FROM matches JOIN teams t ON t.id = away_id WHERE t.name = {teams.name} AND away_goals > home_goals"),
        ("hard", "average", "How many goals did both sides together score on average in a match of {teams.name}?",
         "SELECT AVG(home_goals + away_goals) FROM matches JOIN teams t ON t.id IN (home_id, away_id) "
         "WHERE t.name = {teams.name}"),
        ("hard", "names", "Which {players.position}s of {teams.name} have scored no goal?",
         "SELECT p.name FROM players p JOIN teams t ON t.id = p.team_id WHERE t.name = {teams.name} "
         "AND position = {players.position} AND p.id NOT IN (SELECT player_id FROM goals)"),
    ),
    "airport": (
        ("easy", "number", "How far away is {destinations.city}? | What is the distance to {destinations.city}?",
         "SELECT distance FROM destinations WHERE city = {destinations.city}"),
        ("easy", "number", "How many flights were late by more than {30-110} minutes?",
         "SELECT COUNT(*) FROM flights WHERE delay > {30-110}"),
        ("easy", "names", "Which airlines are based in {airlines.country}? | Name the airlines from {airlines.country}.",
         "SELECT name FROM airlines WHERE country = {airlines.country}"),
        ("easy", "name", "Which destination in {destinations.country} is the farthest? Name the city.",
         TOP("SELECT city AS answer, distance AS value FROM destinations WHERE country = {destinations.country}")),
        ("normal", "number", "How many passengers flew to {destinations.city} in all?",
         f"SELECT SUM(passengers) FROM {_FLOWN} WHERE city = {{destinations.city}}"),
        ("normal", "number", "How many flights did {airlines.name} make in {month}?",
         f"SELECT COUNT(*) FROM {_FLOWN} WHERE a.name = {{airlines.name}} AND strftime('%Y-%m', day) = {{month}}"),
        ("normal", "average", "By how many minutes were flights of {airlines.name} late on average?",
         f"SELECT AVG(delay) FROM {_FLOWN} WHERE a.name = {{airlines.name}}"),
        ("normal", "names", "To which cities in {destinations.country} does {airlines.name} fly?",
         f"SELECT DISTINCT city FROM {_FLOWN} WHERE d.country = {{destinations.country}} AND a.name = {{airlines.name}}"),
        ("hard", "name", "Which airline carried the most passengers to {destinations.country}?",
         TOP(f"SELECT a.name AS answer, SUM(passengers) AS value FROM {_FLOWN} "
             "WHERE d.country = {destinations.country} GROUP BY a.id")),
        ("hard", "name", "To which city did {airlines.name} carry the most passengers in {month}?",
         TOP(f"SELECT city AS answer, SUM(passengers) AS value FROM {_FLOWN} "
             "WHERE a.name = {airlines.name} AND strftime('%Y-%m', day) = {month} GROUP BY d.code")),
        ("hard", "number", "What is the sum of the distances of all flights of {airlines.name} to {destinations.country}?",
         f"SELECT SUM(distance) FROM {_FLOWN} WHERE a.name = {{airlines.name}} AND d.country = {{destinations.country}}"),
        ("hard", "name", "Which airline had the shortest average delay on flights to places more than {500-4000} away?",
         LOW(f"SELECT a.name AS answer, AVG(delay) AS value FROM {_FLOWN} WHERE distance > {{500-4000}} GROUP BY a.id")),
        ("hard", "names", "Which airlines never flew to {destinations.city}?",
         f"SELECT name FROM airlines WHERE id NOT IN (SELECT a.id FROM {_FLOWN} WHERE city = {{destinations.city}})"),
        ("hard", "percentage", "What percentage of the flights of {airlines.name} to {destinations.country} had no delay?",
         f"SELECT 100.0 * SUM(delay = 0) / COUNT(*) FROM {_FLOWN} "
         "WHERE a.name = {airlines.name} AND d.country = {destinations.country}"),
    ),
}  # fmt: skip
