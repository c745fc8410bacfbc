# The marks that bindings are generated from, in words, but where the header explains them.
/^ \*      \\[a-z]/b
s/\\threads line/threads line/
s/\\threads/\\par Threads\n/
s/\\nullable/<em>May be NULL.<\/em>/g
s/\\length/<br><em>Elements:<\/em>/g
s/\\memory/<em>Memory:<\/em>/g
s/\\keeps/<em>Kept:<\/em>/g
s/\\parent/<em>Keeps alive:<\/em>/g
s/\\destroy/<em>Ended by<\/em>/g
s/\\values//g
