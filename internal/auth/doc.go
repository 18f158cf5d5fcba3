// Package auth makes and checks what people and machines prove themselves with: passwords, tokens, nonces and session
// cookies, and slows down who guesses. It stores nothing and decides nothing: rows belong to the store, and who may do
// what stands in the permission table of the root package.
//
// Only hashes of tokens and passwords are ever kept; no error and no log value of this package carries a secret.
package auth
