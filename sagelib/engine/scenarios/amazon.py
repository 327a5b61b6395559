"""Amazon (test_challenge only): the wish list and the cart."""

from scenario import Action, App, Filter, Question, Source

PRODUCT = """SELECT e.id, e.product_id, p.name, p.price FROM {table} e JOIN products p ON p.id = e.product_id
    WHERE e.user_id = :me ORDER BY e.id"""
PRODUCT_ID = '(product_id=row["product_id"], access_token=token)'

APP = App(
    "amazon",
    sources=[
        Source(
            "wish_list",
            "products on my Amazon wish list",
            "apis.amazon.show_wish_list(access_token=token)",
            PRODUCT.format(table="wish_list_entries"),
            "wish_list",
        ),
        Source(
            "cart",
            "products in my Amazon cart",
            'apis.amazon.show_cart(access_token=token)["cart_items"]',
            PRODUCT.format(table="cart_entries"),
            "cart",
        ),
    ],
    filters=[
        Filter("above", "above {value} dollars", "price", 'row["price"] > value', "price", "over"),
        Filter("below", "below {value} dollars", "price", 'row["price"] < value', "price", "under"),
        Filter("with_word", "whose name has {value}", "word", 'value in row["product_name"]', "name", "has"),
    ],
    actions=[
        Action(
            "remove",
            "Remove",
            f"apis.amazon.delete_product_from_{{item}}{PRODUCT_ID}",
            "amazon.{Item}Entry",
            "removed",
            "product_id",
            "product_id",
        ),
        Action(
            "move",
            "Move",
            f"apis.amazon.move_product_from_wish_list_to_cart{PRODUCT_ID}",
            "amazon.WishListEntry",
            "removed",
            "product_id",
            "product_id",
            also=(("amazon.CartEntry", "added", "one each"),),
            tail="to my cart",
        ),
    ],
    questions=[
        Question("count", "How many {rows} are there?", "return len(rows)", len),
        Question(
            "total",
            "What is the total price of all {rows}?",
            'return sum(row["price"] for row in rows)',
            lambda rows: sum(row["price"] for row in rows),
        ),
    ],
    families="""
        test_challenge  remove  wish_list  above      direct
        test_challenge  remove  cart       with_word  note
        test_challenge  move    wish_list  below      direct
        test_challenge  count   wish_list  with_word  direct
        test_challenge  total   cart       below      text
        test_challenge  total   wish_list  above      direct
    """,
)
