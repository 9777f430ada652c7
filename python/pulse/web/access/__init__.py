"""Authentication, and the checks before every request.

app.py puts guard.Guard around the whole app; the routes get the user from caller.py.

    options   how `pulse web` authenticates, from its options, files and environment
    files     files that give tokens and users their roles
    auth      from a request to an identity
    login     the login page, and the cookie that it sets
    guard     the checks before every request
    caller    the database in the role of the user
"""
