//go:build race

package simtest

// The race detector makes a seed about ten times as slow.
const (
	usualSeeds   = 8
	usualReplays = 1
)
