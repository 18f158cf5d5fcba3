//go:build !race

package simtest

const (
	usualSeeds   = 800
	usualReplays = 12
)
