" Vim syntax file for TextQueue (*.tq). One line for each row of the grammar table.
if exists("b:current_syntax")
  finish
endif

syntax match tqUnknown      /^[^\n].*$/
syntax match tqQueued       /^-.*$/
syntax match tqCleared      /^=.*$/
syntax match tqCritical     /^!.*$/
syntax match tqComment      /^#.*$/
syntax match tqContinuation /^ .*$/
syntax match tqVariable     /^\\.*$/

highlight default link tqUnknown      Error
highlight default link tqQueued       Statement
highlight default link tqCleared      NonText
highlight default link tqCritical     WarningMsg
highlight default link tqComment      Comment
highlight default link tqContinuation Normal
highlight default link tqVariable     Identifier

let b:current_syntax = "textqueue"
