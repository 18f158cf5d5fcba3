package auth_test

import (
	"context"
	"fmt"

	"github.com/holdpoint/holdpoint/internal/auth"
)

func ExamplePasswords() {
	p, ctx := auth.NewPasswords(), context.Background()
	hash, err := p.Hash(ctx, "correct horse battery")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(p.Verify(ctx, hash, "correct horse battery"))
	fmt.Println(p.Verify(ctx, hash, "wrong horse battery"))
	fmt.Println(p.Verify(ctx, "", "correct horse battery")) // no such account
	_, err = p.Hash(ctx, "short")
	fmt.Println(err)
	// Output:
	// true <nil>
	// false <nil>
	// false <nil>
	// invalid_request: Choose a password of at least 12 characters.
}

func ExampleLimiter() {
	logins := auth.NewLimiter(1, 2, 10_000)
	for range 3 {
		ok, _ := logins.Allow(auth.AccountKey("ana@acme.example"))
		fmt.Println(ok)
	}
	// Output:
	// true
	// true
	// false
}
