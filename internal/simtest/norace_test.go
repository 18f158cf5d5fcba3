//go:build !race

package simtest

const usualSeeds = 800
