"""The table of orders, and pulse."""

import sqlalchemy as sa
from alembic import op

from pulse import alembic as pulse_migration

revision = "0001"
down_revision = None


def upgrade() -> None:
    pulse_migration.upgrade(op)
    op.create_table(
        "orders",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("email", sa.Text, nullable=False),
        sa.Column("confirmed_at", sa.DateTime(timezone=True)),
        sa.Column("job_id", sa.BigInteger),
    )


def downgrade() -> None:
    op.drop_table("orders")
    pulse_migration.downgrade(op)
