;;; textqueue-mode.el --- Major mode for TextQueue files  -*- lexical-binding: t; -*-

;; Package-Requires: ((emacs "27.1"))
;; Version: 1.0.0
;; Keywords: files, tools

;;; Commentary:

;; Colours for .tq files, marks of workers that appear by themselves, and commands that change a message.
;; `compile' runs the check.  With Eglot, the language server of `sej tq lsp' is used.

;;; Code:

(defvar textqueue-font-lock-keywords
  '(("^-.*$" . font-lock-keyword-face)
    ("^=.*$" . font-lock-comment-face)
    ("^!.*$" . font-lock-warning-face)
    ("^#.*$" . font-lock-doc-face)
    ("^ .*$" . font-lock-string-face)
    ("^\\\\.*$" . font-lock-variable-name-face)
    ("^[^-=!# \\\n].*$" . font-lock-negation-char-face))
  "One row for each control character, and one for lines without one.")

(defvar textqueue-mode-map
  (let ((map (make-sparse-keymap)))
    (define-key map (kbd "C-c C-d") #'textqueue-done)
    (define-key map (kbd "C-c C-f") #'textqueue-fail)
    (define-key map (kbd "C-c C-r") #'textqueue-reopen)
    map)
  "Keys of `textqueue-mode'.")

(defun textqueue--mark (control)
  "Give the message at point the CONTROL character."
  (save-excursion
    (beginning-of-line)
    (while (and (not (bobp)) (looking-at "[ \\\\]"))
      (forward-line -1))
    (if (not (looking-at "[-=!#]"))
        (user-error "No message at this line")
      (delete-char 1)
      (insert control))))

(defun textqueue-done ()
  "Mark the message at point as done."
  (interactive)
  (textqueue--mark "="))

(defun textqueue-fail ()
  "Mark the message at point as failed."
  (interactive)
  (textqueue--mark "!"))

(defun textqueue-reopen ()
  "Queue the message at point again."
  (interactive)
  (textqueue--mark "-"))

;;;###autoload
(define-derived-mode textqueue-mode text-mode "TextQueue"
  "Major mode for TextQueue files."
  (setq-local font-lock-defaults '(textqueue-font-lock-keywords t))
  (setq-local comment-start "# ")
  (setq-local require-final-newline t)
  ;; Blanks at the end of a line are room for a variable.
  (setq-local before-save-hook
              (remq 'delete-trailing-whitespace
                    (remq 'whitespace-cleanup (default-value 'before-save-hook))))
  (when buffer-file-name
    (setq-local compile-command
                (concat "sej tq check " (shell-quote-argument buffer-file-name))))
  ;; A worker writes into the file.
  (setq-local auto-revert-verbose nil)
  (auto-revert-mode 1))

;;;###autoload
(add-to-list 'auto-mode-alist '("\\.tq\\'" . textqueue-mode))

(with-eval-after-load 'eglot
  (defvar eglot-server-programs)
  (add-to-list 'eglot-server-programs '(textqueue-mode . ("sej" "tq" "lsp"))))

(provide 'textqueue-mode)
;;; textqueue-mode.el ends here
