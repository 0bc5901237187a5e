" Vim settings for TextQueue (*.tq): marks of workers appear by themselves, :make checks, and no blank is trimmed.
if exists("b:did_ftplugin")
  finish
endif
let b:did_ftplugin = 1
let s:cpo = &cpoptions
set cpoptions&vim  " otherwise `set compatible` refuses the continued lines below

setlocal autoread nobomb noexpandtab textwidth=0
setlocal comments=b:# commentstring=#\ %s formatoptions-=t
setlocal foldmethod=expr foldexpr=getline(v:lnum)=~'^[\ \\\\]'?1:(getline(v:lnum+1)=~'^[\ \\\\]'?'>1':0) foldlevel=99

" :make reports mistakes, and :cnext jumps to them.
setlocal makeprg=sej\ tq\ check\ %:S errorformat=%f:%l:%c:\ %m

" Blanks at the end of a line are room for a variable: plugins that trim lines must not do so here.
let b:EditorConfig_disable = 1
let b:better_whitespace_enabled = 0
let b:strip_trailing_lines = 0
let b:ale_fix_on_save = 0

" A worker writes into the file. Compare the file with the buffer often, also while no key is pressed.
augroup textqueue
  autocmd! * <buffer>
  autocmd BufEnter,FocusGained,CursorHold,CursorHoldI <buffer> silent! checktime
augroup END
if has("timers") && !exists("g:textqueue_timer")
  function! s:Look(timer) abort
    if &filetype ==# "textqueue" && mode() ==# "n" && getcmdwintype() ==# ""
      silent! checktime
    endif
  endfunction
  let g:textqueue_timer = timer_start(1000, function("s:Look"), {"repeat": -1})
endif

" :TqDone, :TqFail, :TqReopen and :TqComment change the messages in a range. Comments between them stay comments.
if !exists("*s:Mark")
  function! s:Mark(control, first, last) abort
    let first = a:first
    while first > 1 && getline(first) =~# '^[ \\]'
      let first -= 1
    endwhile
    let entries = filter(range(first, a:last), "getline(v:val) =~# '^[-=!#]'")
    let messages = filter(copy(entries), "getline(v:val) !~# '^#'")
    for line in empty(messages) ? entries : messages
      call setline(line, a:control . strpart(getline(line), 1))
    endfor
  endfunction
endif
command! -buffer -range TqDone call s:Mark("=", <line1>, <line2>)
command! -buffer -range TqFail call s:Mark("!", <line1>, <line2>)
command! -buffer -range TqReopen call s:Mark("-", <line1>, <line2>)
command! -buffer -range TqComment call s:Mark("#", <line1>, <line2>)

let b:undo_ftplugin = "setlocal autoread< bomb< expandtab< textwidth< comments< commentstring< formatoptions<"
      \ . " foldmethod< foldexpr< foldlevel< makeprg< errorformat<"
      \ . " | unlet! b:EditorConfig_disable b:better_whitespace_enabled b:strip_trailing_lines b:ale_fix_on_save"
      \ . " | execute 'autocmd! textqueue * <buffer>'"
      \ . " | delcommand TqDone | delcommand TqFail | delcommand TqReopen | delcommand TqComment"
let &cpoptions = s:cpo
unlet s:cpo
