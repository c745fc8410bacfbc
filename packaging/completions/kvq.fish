# Completion of kvq in fish. The program knows its commands, options and their values.
function __kvq_complete
    set -l before (commandline -opc)
    set -l word (commandline -ct)
    set -l found ($before[1] complete -- $before[2..] "$word" 2>/dev/null)
    if set -q found[1]
        printf '%s\n' $found
    else
        __fish_complete_path "$word"
    end
end
complete -c kvq -f -a '(__kvq_complete)'
