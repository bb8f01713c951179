// Starts a player for each recording of the page. It plays when asked to, and shows its last picture until then.
document.querySelectorAll("[data-cast]").forEach((place) => {
    AsciinemaPlayer.create({ data: window.casts[place.dataset.cast] }, place, {
        cols: Number(place.dataset.cols),
        rows: Number(place.dataset.rows),
        fit: "width",
        poster: place.dataset.poster,
        idleTimeLimit: 2,
        preload: true,
        theme: "asciinema",
    });
});
