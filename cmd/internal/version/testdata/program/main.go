// Command program prints the version that it was built with, for tests of its build.
package main

import (
	"fmt"

	"github.com/ironlb/ironlb/cmd/internal/version"
)

func main() { fmt.Println(version.String()) }
