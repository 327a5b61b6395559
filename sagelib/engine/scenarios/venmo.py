"""Venmo: payments sent and received, payment requests."""

from scenario import Action, App, Filter, Question, Source

PAYMENT = """SELECT t.id, t.amount, t.description, s.first_name || ' ' || s.last_name AS sender, r.first_name || ' ' || r.last_name AS receiver,
    EXISTS (SELECT 1 FROM transaction_likes l WHERE l.transaction_id = t.id AND l.user_id = :me) AS liked
    FROM transactions t JOIN users s ON s.id = t.sender_id JOIN users r ON r.id = t.receiver_id WHERE t.{side}_id = :me ORDER BY t.id"""
REQUEST = PAYMENT.replace("transactions t", "payment_requests t").replace(
    "EXISTS (SELECT 1 FROM transaction_likes l WHERE l.transaction_id = t.id AND l.user_id = :me)", "0"
)
REQUEST_ID = 'payment_request_id=row["payment_request_id"], access_token=token)'
NOTICE = ("venmo.Notification", "added", "one each")

APP = App(
    "venmo",
    sources=[
        Source(
            "sent_payments",
            "payments I sent on Venmo",
            'pages(apis.venmo.show_transactions, direction="sent", access_token=token)',
            PAYMENT.format(side="sender"),
        ),
        Source(
            "received_payments",
            "payments I received on Venmo",
            'pages(apis.venmo.show_transactions, direction="received", access_token=token)',
            PAYMENT.format(side="receiver"),
        ),
        Source(
            "received_requests",
            "payment requests I received on Venmo",
            'pages(apis.venmo.show_received_payment_requests, status="pending", access_token=token)',
            REQUEST.format(side="receiver"),
        ),
        Source(
            "sent_requests",
            "payment requests I sent on Venmo",
            'pages(apis.venmo.show_sent_payment_requests, status="pending", access_token=token)',
            REQUEST.format(side="sender"),
        ),
    ],
    filters=[
        Filter("to_person", "to {value}", "person", 'row["receiver"]["name"] == value', "receiver", "is"),
        Filter("from_person", "from {value}", "person", 'row["sender"]["name"] == value', "sender", "is"),
        Filter("for_purpose", "for {value}", "purpose", 'row["description"] == value', "description", "is"),
        Filter("above", "above {value} dollars", "amount", 'row["amount"] > value', "amount", "over"),
    ],
    actions=[
        Action(
            "like",
            "Like",
            'apis.venmo.like_transaction(transaction_id=row["transaction_id"], access_token=token)',
            "venmo.TransactionLike",
            "added",
            "transaction_id",
            needs=(("liked", 0),),
            also=(("venmo.Transaction", "updated", "some"),),
        ),
        Action(
            "approve",
            "Approve",
            f"apis.venmo.approve_payment_request({REQUEST_ID}",
            "venmo.PaymentRequest",
            "updated",
            also=(("venmo.User", "updated", "some"), ("venmo.Transaction", "added", "one each"), NOTICE),
        ),
        Action(
            "deny",
            "Deny",
            f"apis.venmo.deny_payment_request({REQUEST_ID}",
            "venmo.PaymentRequest",
            "updated",
            also=(NOTICE,),
        ),
        Action(
            "delete", "Delete", f"apis.venmo.delete_payment_request({REQUEST_ID}", "venmo.PaymentRequest", "removed"
        ),
    ],
    questions=[
        Question("count", "How many {rows} are there?", "return len(rows)", len),
        Question(
            "total",
            "What is the total amount of all {rows}?",
            'return sum(row["amount"] for row in rows)',
            lambda rows: sum(row["amount"] for row in rows),
        ),
    ],
    families="""
        demos        like     sent_payments      for_purpose  direct
        train        like     sent_payments      above        direct
        train        like     received_payments  from_person  note
        demos        approve  received_requests  from_person  direct
        train        approve  received_requests  above        note
        train        deny     received_requests  for_purpose  direct
        demos        deny     received_requests  above        text
        demos        delete   sent_requests      to_person    direct
        demos        count    received_payments  for_purpose  note
        train        count    sent_requests      for_purpose  direct
        demos        total    sent_payments      to_person    direct
        train        total    received_payments  above        direct
        train        approve  received_requests  for_purpose  direct
        train        count    received_payments  above        direct
        train        count    received_payments  from_person  direct
        train        count    sent_requests      to_person    direct
        train        delete   sent_requests      for_purpose  direct
        train        like     sent_payments      to_person    direct
        train        total    received_payments  from_person  direct
        train        total    sent_requests      for_purpose  note
        train        deny     received_requests  above        direct
        train        count    received_payments  for_purpose  direct
        dev          total    sent_payments      for_purpose  direct
        dev          total    received_payments  for_purpose  direct
        dev          like     received_payments  above        text
        dev          total    sent_payments      above        note
        test_normal  like     received_payments  for_purpose  direct
        test_normal  deny     received_requests  from_person  note
        test_normal  total    sent_requests      to_person    direct
    """,
)
