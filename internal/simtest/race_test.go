//go:build race

package simtest

// The race detector makes a seed about ten times as slow.
const (
	usualSeeds   = 24
	usualReplays = 2
)
