"""What the operator takes as public about the private records; the plan and the certificate repeat it."""

CLASSES_ARE_PUBLIC = "the names and the order of the classes, which the model carries"
CONSTANTS_ARE_PUBLIC = (
    "the number of training records (the rows of the training split unless privacy.population gives another "
    "number; where users are the unit, the number of users), and the number of classes"
)
COMPLETIONS_ARE_PUBLIC = (
    "the number of training records (the rows of the training split unless privacy.population gives another "
    "number; where users are the unit, the number of users), and that of each record at most {prompt} tokens of the "
    "prompt and {completion} of the completion are read"
)
USERS_ARE_PUBLIC = (
    "that of each user at most {most} training records are used (privacy.records_per_user), and one held-out "
    "record"
)
