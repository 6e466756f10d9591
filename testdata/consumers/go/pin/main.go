// Reads one complete generation, however slowly: pin ROOT
package main

import (
	"bufio"
	"fmt"
	"log"
	"os"

	"example.com/consumers/pinned"
)

func main() {
	config, err := pinned.Open(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	defer config.Close()
	fmt.Println("pinned")
	bufio.NewReader(os.Stdin).ReadString('\n')
	for _, name := range []string{"a", "b", "sub/c"} {
		text, err := os.ReadFile(pinned.Path(config, name))
		if err != nil {
			log.Fatal(err)
		}
		os.Stdout.Write(text)
	}
}
