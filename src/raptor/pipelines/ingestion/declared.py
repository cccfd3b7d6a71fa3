"""What the operator takes as public about the private records; the plan and the certificate repeat it."""

CLASSES_ARE_PUBLIC = "the names and the order of the classes, which the model carries"
CONSTANTS_ARE_PUBLIC = (
    "the number of training records (the rows of the training split unless privacy.population gives another "
    "number), and the number of classes"
)
