"""English sentences of many lengths and kinds, written for this project, for models that read text."""

from __future__ import annotations

#: what artifacts are judged on. No sentence is also in ``CALIBRATION``.
EVALUATION = (
    "Yes.",
    "Where is the nearest pharmacy?",
    "The kettle is boiling.",
    "Please move my dentist appointment from Tuesday to Thursday afternoon.",
    "A red fox crossed the empty car park just before sunrise.",
    "How many grams of flour go into a loaf of sourdough?",
    "The bridge was closed for repairs, so the bus took the long way round the lake.",
    "Photosynthesis turns carbon dioxide and water into sugar and oxygen.",
    "Error 404: the page you asked for does not exist.",
    "Our quarterly revenue rose by 7.4 % while costs stayed flat.",
    "She plays the cello in an amateur orchestra.",
    "He has played the violoncello with hobby musicians for years.",
    "The cat sat on the windowsill and watched the snow fall.",
    "A kitten is looking at snowflakes through the glass.",
    "Interest rates remain unchanged, the central bank announced on Wednesday.",
    "I can't believe they cancelled the show after one season!",
    "Tighten the four bolts crosswise to 25 newton metres, then check the seal for leaks.",
    "Mount the volume read-only before you copy the backup.",
    "The museum opens at ten, but the queue starts at half past eight.",
    "My grandmother's recipe uses cardamom, never cinnamon.",
    "Seventeen sailors were rescued from the sinking trawler off the coast of Norway last night.",
    "Does this jacket come in a larger size?",
    "The proof is by induction on the number of edges.",
    "Warm winters bring fewer frosts and more ticks.",
    "After three weeks of rain the river finally burst its banks, flooding the lower meadows, two farms and the only "
    "road that connects the village with the railway station.",
    "Turn left after the church, follow the gravel path uphill for about twenty minutes, and you will see a small hut "
    "with a green door; the key hangs behind the third shutter, and the stove needs a little patience.",
    "In the early years of the company everybody did everything: the founders answered the phone, the accountant "
    "packed parcels, and on Fridays the whole team sat around one table, ate soup, and argued about what the product "
    "should do next, which was slow and loud but kept everyone honest about what customers really wanted from us.",
    "ok thx, c u @ 8pm ;-)",
    "The naïve café owner's résumé mentions Zürich, São Paulo and Kraków.",
    "!!!",
    "Antidisestablishmentarianism is longer than pneumonia but shorter than you think.",
    "To be, or not to be, that is the question.",
)

#: what calibrated precisions see.
CALIBRATION = (
    "No.",
    "What time does the last train leave?",
    "The printer is out of paper again.",
    "Remind me to water the tomatoes tomorrow morning.",
    "An owl called twice from the barn roof.",
    "How do I convert miles per hour to metres per second?",
    "The ferry was late because of fog, and everyone missed the concert.",
    "Plate tectonics explains why earthquakes cluster along the edges of continents.",
    "Warning: disk usage on the build server has passed 95 percent.",
    "The startup raised 12 million euros in its second round.",
    "They rehearse in the school gym every Monday evening.",
    "Dogs need more exercise than most people expect.",
    "Inflation slowed for the third month in a row.",
    "What a goal!",
    "Rinse the filter under cold water, let it dry for a day, and put it back with the arrow pointing inwards.",
    "Close the database connection in a finally block.",
    "The library is quiet on weekday mornings.",
    "He salted the soup twice by mistake.",
    "Two climbers reached the summit at noon and were back at base camp before the storm.",
    "Can I return these shoes without the box?",
    "Every bounded monotone sequence of real numbers converges.",
    "Bees prefer lavender to roses.",
    "Although the committee had met eleven times, read every report and listened to dozens of residents, it could not "
    "agree on where the new school should stand.",
    "The recipe says to brown the onions slowly, which nobody does; most cooks turn up the heat, burn the edges, add a "
    "splash of water, and then wonder why the gravy tastes bitter and looks grey.",
    "When we moved to the coast we imagined long walks, grilled fish and quiet evenings, but what we found first was "
    "damp in every wall, gulls that opened the rubbish bags at dawn, neighbours who knew our names before we knew "
    "theirs, and a wind that never once stopped from the end of October until the first warm week of the next April.",
    "lol that's not even close, try again",
    "Señor Muñoz ordered a crème brûlée and two espressos.",
    "3.14159 26535 89793",
    "Electroencephalography records voltage fluctuations at the scalp.",
    "It was the best of times, it was the worst of times.",
    "Send the signed contract to the office in Leeds by Friday.",
    "The moon rose late and orange over the harbour.",
)
