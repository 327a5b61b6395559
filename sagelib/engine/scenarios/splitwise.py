"""Splitwise (test_challenge only): expenses in the user's groups and outside of them."""

from scenario import Action, App, Filter, Question, Source

EXPENSE = """SELECT e.id, e.amount, e.description, p.first_name || ' ' || p.last_name AS payer
    FROM expenses e JOIN users p ON p.id = e.payer_id WHERE NOT e.deleted AND {where} ORDER BY e.id"""
EXPENSE_ID = 'expense_id=row["expense_id"], '
NOTICE = ("splitwise.Notification", "added", "some")

APP = App(
    "splitwise",
    sources=[
        Source(
            "group_expenses",
            "expenses in my Splitwise groups",
            "[row for g in pages(apis.splitwise.show_groups, access_token=token) for row in "
            'pages(apis.splitwise.show_group_expenses, group_id=g["group_id"], access_token=token)]',
            EXPENSE.format(where="e.group_id IN (SELECT group_id FROM group_members WHERE user_id = :me)"),
        ),
        Source(
            "other_expenses",
            "expenses outside my Splitwise groups",
            "pages(apis.splitwise.show_no_group_expenses, access_token=token)",
            EXPENSE.format(
                where="e.group_id IS NULL AND (e.payer_id = :me OR e.id IN (SELECT expense_id FROM expense_shares WHERE debtor_id = :me))"
            ),
        ),
    ],
    filters=[
        Filter("paid_by", "paid by {value}", "payer", 'row["payer"]["name"] == value', "payer", "is"),
        Filter("for_purpose", "for {value}", "purpose", 'row["description"] == value', "description", "is"),
        Filter("above", "above {value} dollars", "amount", 'row["paid_amount"] > value', "amount", "over"),
    ],
    actions=[
        Action(
            "delete",
            "Delete",
            f"apis.splitwise.delete_expense({EXPENSE_ID}access_token=token)",
            "splitwise.Expense",
            "updated",
            sets=(("deleted", True),),
            also=(NOTICE,),
        ),
        Action(
            "comment",
            "Comment Checked on",
            f'apis.splitwise.post_expense_comment({EXPENSE_ID}comment="Checked", access_token=token)',
            "splitwise.ExpenseComment",
            "added",
            "expense_id",
            sets=(("comment", "Checked"),),
            also=(NOTICE,),
        ),
    ],
    questions=[
        Question("count", "How many {rows} are there?", "return len(rows)", len),
        Question(
            "total",
            "What is the total amount of all {rows}?",
            'return sum(row["paid_amount"] for row in rows)',
            lambda rows: sum(row["amount"] for row in rows),
        ),
    ],
    families="""
        test_challenge  delete   group_expenses  for_purpose  direct
        test_challenge  delete   other_expenses  above        note
        test_challenge  comment  other_expenses  paid_by      direct
        test_challenge  comment  group_expenses  above        direct
        test_challenge  count    other_expenses  for_purpose  text
        test_challenge  total    group_expenses  paid_by      direct
    """,
)
