from alembic import context
from app import URL, Base
from sqlalchemy import create_engine, pool

with create_engine(URL, poolclass=pool.NullPool).connect() as connection:
    context.configure(connection=connection, target_metadata=Base.metadata)
    with context.begin_transaction():
        context.run_migrations()
