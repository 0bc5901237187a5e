autocmd BufRead,BufNewFile *.tq setfiletype textqueue
