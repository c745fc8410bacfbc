module kvq

go 1.19
